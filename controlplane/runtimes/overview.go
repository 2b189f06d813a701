package runtimes

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// neverHeardAfter is how long a runtime that is ready may send nothing. Agents send a heartbeat
// every 30 s.
const neverHeardAfter = 5 * time.Minute

// Overview has the states of all runtimes, as the controllers of this process have seen them. The
// zero value is ready, for [Options.Overview]. It may be used concurrently. Its Installations are
// for metrics, and for statuspage.InstallationsHandler.
type Overview struct {
	mu        sync.Mutex
	runtimes  map[client.ObjectKey]seen
	watchers  *watchers
	authority certificates.Status
	repairs   int64
	status    func(core.RuntimeID, core.Manager) fleet.Status // of a fleet, for runtimes that never sent anything, or nil
}

// contents are the data that an installation brings to a runtime.
type contents struct {
	watches  []watch.Watch
	managers []core.Manager
	watchers *watchers
}

// seen is the last status of an object.
type seen struct {
	id       core.RuntimeID
	state    fleet.InstallationState
	ready    time.Time // since when
	managers []core.Manager
	watchers *watchers // installed there, nil if it is not ready
}

// watchers are the generations of the Watchers that are installed in a runtime. Runtimes share one
// until a Watcher changes.
type watchers map[types.NamespacedName]int64

// share returns the last one if it is the same.
func (o *Overview) share(now watchers) *watchers {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watchers == nil || !maps.Equal(*o.watchers, now) {
		o.watchers = &now
	}
	return o.watchers
}

// Installed returns in how many of all runtimes a generation of a Watcher is installed, for
// watcher.Options.
func (o *Overview) Installed(watcher types.NamespacedName, generation int64) (installed, all int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, runtime := range o.runtimes {
		if runtime.watchers != nil && (*runtime.watchers)[watcher] == generation {
			installed++
		}
	}
	return installed, len(o.runtimes)
}

// Installations returns the current states. With 10,000 runtimes it takes a few milliseconds.
func (o *Overview) Installations() fleet.Installations {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := fleet.Installations{
		Runtimes: make(map[fleet.InstallationState]int), NeverHeard: make(map[core.Manager][]core.RuntimeID), Repairs: o.repairs,
		Phase: o.authority.Phase, Waiting: slices.Clone(o.authority.Waiting),
		Overdue: slices.Clone(o.authority.Overdue),
	}
	for key, runtime := range o.runtimes {
		all.Runtimes[runtime.state]++
		if runtime.state.State == string(installation.Failed) {
			all.Failed = append(all.Failed,
				fleet.FailedInstallation{Object: key, Runtime: runtime.id, Reason: runtime.state.Reason})
		}
		for _, manager := range runtime.managers {
			silent := all.NeverHeard[manager] // Each manager has an entry.
			if o.silent(runtime, manager) {
				silent = append(silent, runtime.id)
			}
			all.NeverHeard[manager] = silent
		}
	}
	for _, runtimes := range all.NeverHeard {
		slices.Sort(runtimes)
	}
	slices.SortFunc(all.Failed, func(a, b fleet.FailedInstallation) int {
		return cmp.Compare(a.Object.String(), b.Object.String())
	})
	return all
}

// silent reports whether a runtime has sent nothing, and should have.
func (o *Overview) silent(runtime seen, manager core.Manager) bool {
	return o.status != nil && !runtime.ready.IsZero() && time.Since(runtime.ready) > neverHeardAfter &&
		o.status(runtime.id, manager).LastSeen.IsZero()
}

// note sets the status of an object. An empty id leaves the former one.
func (o *Overview) note(key client.ObjectKey, id core.RuntimeID, status installation.Status, has contents) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := seen{
		id:    cmp.Or(id, o.runtimes[key].id),
		state: fleet.InstallationState{State: string(status.State), Reason: status.Reason},
	}
	if status.State == installation.Ready {
		now.managers, now.watchers, now.ready = has.managers, has.watchers, o.runtimes[key].ready
		if now.ready.IsZero() {
			now.ready = time.Now()
		}
	}
	if o.runtimes == nil {
		o.runtimes = make(map[client.ObjectKey]seen)
	}
	o.runtimes[key] = now
}

// forget returns the runtime of the object, if it is known, and no other object has it.
func (o *Overview) forget(key client.ObjectKey) core.RuntimeID {
	o.mu.Lock()
	defer o.mu.Unlock()
	id := o.runtimes[key].id
	delete(o.runtimes, key)
	for _, other := range o.runtimes {
		if other.id == id {
			return ""
		}
	}
	return id
}

func (o *Overview) edit(change func(o *Overview)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change(o)
}
