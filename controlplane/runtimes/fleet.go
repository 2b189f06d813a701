package runtimes

import (
	"maps"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// followFleet enqueues a runtime at once when the fleet finds its watch path broken, if the fleet
// can be followed. The priority is low, as all runtimes may be stale at once.
func (r *reconciler) followFleet() {
	if r.opts.Fleet == nil {
		return
	}
	r.forgetter.fleet = r.opts.Fleet
	r.repairs.pause = leastPause * r.opts.Retry
	r.opts.Fleet.OnChange(func(change fleet.Transition) {
		object, after, due := r.repairs.observe(&change.To)
		if due && !r.failures.fails(object) { // Its lane tries it again.
			r.regular.add(reconcile.Request{NamespacedName: object}, after, handler.LowPriority)
		}
	})
}

// leastPause is the least time to the next early reconcile of a runtime, in units of
// [Options.Retry]. By default it is a minute. By then, all managers have got a heartbeat from after
// the reconcile.
const leastPause = 20

// repairs has the runtimes that are ready, with the broken watch paths among them. Each new
// condition of a runtime leads to one reconcile, which applies all objects. The zero value is
// ready.
type repairs struct {
	pause time.Duration // between two early reconciles of a runtime, at least

	mu    sync.Mutex
	known map[core.RuntimeID]*repairable
	ids   map[client.ObjectKey]core.RuntimeID
	stale map[core.RuntimeID]struct{} // those of known
}

// repairable is a runtime that can be repaired, as its agent is installed.
type repairable struct {
	object   client.ObjectKey
	managers []core.Manager // that its agents send to
	// broken has the managers with a condition that a reconcile may end.
	broken    map[core.Manager]fleet.Condition
	verify    bool      // the next reconcile applies all objects
	next      time.Time // of the next early reconcile, at the earliest
	installed string    // the version of the certificates that the agent has
}

// note adds or updates a runtime that is ready.
func (r *repairs) note(id core.RuntimeID, object client.ObjectKey, managers []core.Manager) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known, r.ids = make(map[core.RuntimeID]*repairable), make(map[client.ObjectKey]core.RuntimeID)
		r.stale = make(map[core.RuntimeID]struct{})
	}
	if r.ids[object] != id {
		r.remove(object)
	}
	if r.known[id] == nil {
		r.known[id] = &repairable{}
	}
	known := r.known[id]
	r.ids[object], known.object, known.managers = id, object, managers
	maps.DeleteFunc(known.broken, func(m core.Manager, _ fleet.Condition) bool { return !slices.Contains(managers, m) })
	r.noteStale(id)
}

// forget removes the runtime of an object, unless it belongs to another object now.
func (r *repairs) forget(object client.ObjectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(object)
}

func (r *repairs) remove(object client.ObjectKey) {
	id := r.ids[object]
	delete(r.ids, object)
	if known := r.known[id]; known != nil && known.object == object {
		delete(r.known, id)
		delete(r.stale, id)
	}
}

func (r *repairs) noteStale(id core.RuntimeID) {
	delete(r.stale, id)
	for _, condition := range r.known[id].broken {
		if condition.State == fleet.Stale {
			r.stale[id] = struct{}{}
		}
	}
}

// isOutage reports whether so many runtimes are stale that the control plane is the likely cause,
// such as its gateway. Looks at all runtimes could not end that.
func (r *repairs) isOutage() bool {
	const least, part = 20, 10
	return len(r.stale) > max(least, len(r.known)/part)
}

// observe notes a change of freshness. If a reconcile is due, it returns its object and the time
// until then.
func (r *repairs) observe(now *fleet.Status) (object client.ObjectKey, after time.Duration, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known[now.Runtime]
	if known == nil || !slices.Contains(known.managers, now.Manager) {
		return client.ObjectKey{}, 0, false
	}
	isNew := known.change(now)
	r.noteStale(now.Runtime)
	if isNew && now.State == fleet.Stale && r.isOutage() {
		known.verify, isNew = false, false
	}
	if !isNew {
		return client.ObjectKey{}, 0, false
	}
	if after = time.Until(known.next); after > 0 {
		return known.object, after, true
	}
	known.next = time.Now().Add(r.pause)
	return known.object, 0, true
}

// change reports whether the condition is new for the runtime. All managers of an agent have the
// same one.
func (r *repairable) change(now *fleet.Status) (isNew bool) {
	condition := fleet.Condition{State: now.State, Reason: now.Reason}
	if !canRepair(condition) {
		delete(r.broken, now.Manager)
		r.verify = r.verify && len(r.broken) > 0
		return false
	}
	isNew = !slices.Contains(slices.Collect(maps.Values(r.broken)), condition)
	if r.broken == nil {
		r.broken = make(map[core.Manager]fleet.Condition)
	}
	r.broken[now.Manager] = condition
	r.verify = r.verify || isNew
	return isNew
}

// canRepair reports whether a reconcile may end a condition of a single runtime. Load, or the
// control plane, causes the others.
func canRepair(c fleet.Condition) bool {
	causedElsewhere := []string{reasons.Dropping, reasons.PendingTooLong, reasons.SharedByReplicas}
	return c.State == fleet.Stale || c.State == fleet.Degraded && !slices.Contains(causedElsewhere, c.Reason)
}

// edit changes a runtime that was ready before, if it is known.
func (r *repairs) edit(id core.RuntimeID, change func(known *repairable)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.known[id]; known != nil {
		change(known)
	}
}

// isInstalled reports whether the agent of a runtime has the certificates with that version, and
// nothing is to be verified. An empty version is not known.
func (r *repairs) isInstalled(id core.RuntimeID, version string) (installed bool) {
	r.edit(id, func(known *repairable) {
		installed = version != "" && known.installed == version && !known.verify
	})
	return installed
}

// begin reports whether a reconcile must apply all objects.
func (r *repairs) begin(id core.RuntimeID) (verify bool) {
	r.edit(id, func(known *repairable) { verify, known.verify = known.verify, false })
	return verify
}

// end notes how long a reconcile took. The next early one waits nine times as long, so that a slow
// or flapping runtime takes at most a tenth of a worker.
func (r *repairs) end(id core.RuntimeID, took time.Duration, verified bool) {
	const pauses = 9
	wait := pauses * took
	if verified {
		wait = max(wait, r.pause)
	}
	r.edit(id, func(known *repairable) {
		if next := time.Now().Add(wait); next.After(known.next) {
			known.next = next
		}
	})
}

const (
	// drain is how long agents may send heartbeats after their removal.
	drain = time.Minute
	// lingering is how long after the last Watcher of a manager the runtimes that still send for it
	// are reconciled early.
	lingering = 10 * time.Minute
	// maxFormer bounds the managers that a runtime names.
	maxFormer = 100
)

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

func newForgetter(from forgetting) *forgetter {
	return &forgetter{
		fleet: from, named: make(map[core.Manager]time.Time),
		former:  make(map[client.ObjectKey]map[core.Manager]time.Time),
		removed: make(map[client.ObjectKey]removal),
	}
}

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
