package runtimes

import (
	"maps"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

const (
	// drain is how long agents may send heartbeats after their removal.
	drain = time.Minute
	// lingering is how long after the last Watcher of a manager the runtimes that still send for it
	// are reconciled early.
	lingering = 10 * time.Minute
	// maxFormer bounds the managers that a runtime names.
	maxFormer = 100
)

// forgetting is the part of a fleet that a forgetter needs.
type forgetting interface {
	Forget(runtime core.RuntimeID)
	ForgetManager(runtime core.RuntimeID, manager core.Manager) (forgotten bool)
}

// forgetter removes runtimes and managers from a fleet when their agents have ended. Its state
// lives as long as the fleet: in this process.
type forgetter struct {
	fleet forgetting // nil: none

	mu sync.Mutex
	// named has the managers that a Watcher has ever named, with the time since when none does,
	// zero while one does. Other managers are never removed, as a manager needs no Watcher.
	named map[core.Manager]time.Time
	// former has managers that only a runtime itself has named, with the time. It decides about
	// that runtime alone, and at most maxFormer are kept.
	former map[client.ObjectKey]map[core.Manager]time.Time
	// removed has the runtimes with agents that may still send heartbeats.
	removed map[client.ObjectKey]removal
}

type removal struct {
	id core.RuntimeID
	at time.Time
}

func newForgetter(fleet forgetting) *forgetter {
	return &forgetter{
		fleet: fleet, named: make(map[core.Manager]time.Time),
		former:  make(map[client.ObjectKey]map[core.Manager]time.Time),
		removed: make(map[client.ObjectKey]removal),
	}
}

// note sets the current watches.
func (f *forgetter) note(watches []watch.Watch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for manager, left := range f.named {
		if left.IsZero() && !slices.ContainsFunc(watches, func(w watch.Watch) bool { return w.Manager == manager }) {
			f.named[manager] = time.Now()
		}
	}
	for _, watch := range watches {
		f.named[watch.Manager] = time.Time{}
	}
}

// noteFormer adds managers that the webhooks of a runtime have named until now. Their Watchers may
// have gone while this process did not run.
func (f *forgetter) noteFormer(object client.ObjectKey, managers []core.Manager) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, manager := range managers {
		if _, known := f.named[manager]; known || len(f.former[object]) == maxFormer {
			continue
		}
		if f.former[object] == nil {
			f.former[object] = make(map[core.Manager]time.Time)
		}
		f.former[object][manager] = time.Now()
	}
}

// forgetFormer removes the managers that the agents of a runtime do not send to any more. It
// returns the time to the next reconcile, at most interval: a manager stays while former agents
// send heartbeats for it.
func (f *forgetter) forgetFormer(
	object client.ObjectKey, id core.RuntimeID, current []core.Manager, interval time.Duration,
) time.Duration {
	if f.fleet == nil {
		return interval
	}
	for manager, left := range f.candidates(object) {
		if slices.Contains(current, manager) {
			continue
		}
		if forgotten := f.fleet.ForgetManager(id, manager); time.Since(left) < lingering && !forgotten {
			interval = min(interval, drain)
		} else if forgotten && time.Since(left) >= lingering {
			f.mu.Lock()
			delete(f.former[object], manager)
			f.mu.Unlock()
		}
	}
	return interval
}

// candidates returns the managers that a runtime may not have any more, with the time since when.
func (f *forgetter) candidates(object client.ObjectKey) map[core.Manager]time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[core.Manager]time.Time)
	maps.Copy(all, f.former[object])
	maps.Copy(all, f.named)
	maps.DeleteFunc(all, func(_ core.Manager, left time.Time) bool { return left.IsZero() })
	return all
}

// end drops the managers that a runtime has named.
func (f *forgetter) end(object client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.former, object)
}

// forget removes the runtime of an object that is gone. An empty id stands for the runtime that was
// removed before, as a late heartbeat may have added it. It returns the time to the next reconcile,
// 0 for none.
func (f *forgetter) forget(object client.ObjectKey, id core.RuntimeID) time.Duration {
	f.mu.Lock()
	if id != "" {
		f.removed[object] = removal{id, time.Now()}
	}
	removed, known := f.removed[object]
	wait := max(drain-time.Since(removed.at), 0)
	if wait == 0 {
		delete(f.removed, object)
	}
	f.mu.Unlock()
	if known && f.fleet != nil {
		f.fleet.Forget(removed.id)
	}
	return wait
}
