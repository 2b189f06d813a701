package runtimes

import (
	"maps"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// drain is how long agents that are on their way out may be heard, give or take little.
	drain = time.Minute
	// lingering is how long after a manager's last Watcher runtimes that are still heard for it are looked at sooner than usual.
	lingering = 10 * time.Minute
)

// forgetter makes a fleet forget what agents speak of no more. What it remembers for that lives as long as what a fleet knows: in this process.
type forgetter struct {
	fleet Fleet

	mu sync.Mutex
	// named are the managers that a Watcher has ever named, each with when it was seen that none does any more, the zero time while one does. Only
	// they are ever forgotten: a manager may also be served without any Watcher.
	named map[core.Manager]time.Time
	// removed are the runtimes whose agents may still be heard.
	removed map[client.ObjectKey]removal
}

type removal struct {
	id core.RuntimeID
	at time.Time
}

func newForgetter(fleet Fleet) *forgetter {
	return &forgetter{fleet: fleet, named: make(map[core.Manager]time.Time), removed: make(map[client.ObjectKey]removal)}
}

// note takes in what is watched now.
func (f *forgetter) note(watches []admission.Watch) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for manager, left := range f.named {
		if left.IsZero() && !slices.ContainsFunc(watches, func(w admission.Watch) bool { return w.Manager == manager }) {
			f.named[manager] = time.Now()
		}
	}

	for _, watch := range watches {
		f.named[watch.Manager] = time.Time{}
	}
}

// noteFormer takes in managers that the agents were told of until now, as far as a runtime knows: their Watchers may have left them while
// this process did not run.
func (f *forgetter) noteFormer(managers []core.Manager) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, manager := range managers {
		if _, known := f.named[manager]; !known {
			f.named[manager] = time.Now()
		}
	}
}

// forgetFormer forgets the managers that the agents of a runtime do not speak to any more. It returns when to look at the runtime again, at
// the latest in interval: agents of before are heard until they have ended, and who is heard is not forgotten.
func (f *forgetter) forgetFormer(id core.RuntimeID, spokenTo []core.Manager, interval time.Duration) time.Duration {
	f.mu.Lock()
	named := maps.Clone(f.named)
	f.mu.Unlock()

	for manager, left := range named {
		if left.IsZero() || slices.Contains(spokenTo, manager) {
			continue
		}

		if !f.fleet.ForgetManager(id, manager) && time.Since(left) < lingering {
			interval = min(interval, drain)
		}
	}

	return interval
}

// forget forgets a runtime that was removed, and returns when to look for it again.
func (f *forgetter) forget(object client.ObjectKey, id core.RuntimeID) time.Duration {
	f.mu.Lock()
	f.removed[object] = removal{id, time.Now()}
	f.mu.Unlock()

	return f.forgetAgain(object)
}

// forgetAgain is about an object that is gone. Until its agents have ended, a heartbeat may have brought the runtime back. It returns when
// to look again, 0 for never.
func (f *forgetter) forgetAgain(object client.ObjectKey) time.Duration {
	f.mu.Lock()

	removed, known := f.removed[object]

	wait := max(drain-time.Since(removed.at), 0)
	if wait == 0 {
		delete(f.removed, object)
	}

	f.mu.Unlock()

	if known {
		f.fleet.Forget(removed.id)
	}

	return wait
}

// noFleet knows nobody.
type noFleet struct{}

func (noFleet) Forget(core.RuntimeID) {}

func (noFleet) ForgetManager(core.RuntimeID, core.Manager) bool { return true }
