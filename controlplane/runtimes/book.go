package runtimes

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/installations"
)

// book contains the state of each object of one controller. The reconciler writes it, and the
// metrics and the status page read it. mu guards all fields except status, which does not change.
type book struct {
	mu       sync.Mutex
	objects  map[client.ObjectKey]*entry
	runtimes map[core.RuntimeID]*entry // Their objects were ready, or they join by themselves.
	stale    map[*entry]struct{}       // The fleet finds their runtimes stale.
	watchers watchers                  // Entries share the watchers of the last reconcile.
	repairs  int64                     // Early reconciles that have applied all objects.

	// status is the status of a fleet, for runtimes that never sent anything, or nil.
	status func(core.RuntimeID, core.Manager) fleet.Status
}

// entry is the state of one object. The lock of its book guards it.
type entry struct {
	object client.ObjectKey
	id     core.RuntimeID // The last ID that is known.
	joins  bool           // The runtime joins by itself.

	// The last report sets these.
	state    installations.State // Zero before the first report.
	text     string              // Of the last Event, empty for a status without an Event.
	ready    time.Time           // Since when, zero for a runtime that is not ready.
	managers []core.Manager      // The managers of the agents, since the runtime was ready.
	watchers watchers            // The Watchers that are installed there.

	former former
	lane
	repair
}

// contents are the contents of a runtime: all Watchers, which are the same for all runtimes.
type contents struct {
	watches  []watch.Watch
	managers []core.Manager
	watchers watchers
}

// watchers are the generations of the Watchers that are installed in a runtime. Runtimes share one
// until a Watcher changes.
type watchers map[types.NamespacedName]int64

func newBook() *book {
	return &book{
		objects:  make(map[client.ObjectKey]*entry),
		runtimes: make(map[core.RuntimeID]*entry),
		stale:    make(map[*entry]struct{}),
	}
}

// withEntry calls a function with the entry of an object, under the lock. Without an entry, it does
// nothing.
func (b *book) withEntry(object client.ObjectKey, call func(e *entry)) {
	b.withLock(func() {
		e := b.objects[object]
		if e != nil {
			call(e)
		}
	})
}

func (b *book) withLock(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()

	change()
}

// eachReported visits the entries of objects with a report.
func (b *book) eachReported(visit func(e *entry)) {
	b.mu.Lock()
	defer b.mu.Unlock()

	for _, e := range b.objects {
		if e.state.State != "" {
			visit(e)
		}
	}
}

// allRequests returns the requests of all objects.
func (b *book) allRequests() (all []reconcile.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()

	for object := range b.objects {
		all = append(all, reconcile.Request{NamespacedName: object})
	}
	return all
}

// shareWatchers returns the stored generations if they are the same.
func (b *book) shareWatchers(now watchers) watchers {
	b.mu.Lock()
	defer b.mu.Unlock()

	if !maps.Equal(b.watchers, now) {
		b.watchers = now
	}
	return b.watchers
}

// addObject makes an object known before its first report: a change of Watchers must reach it.
func (b *book) addObject(object client.ObjectKey, id core.RuntimeID) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.ensureEntry(object, id)
}

// ensureEntry adds the entry of an object, and sets its ID. An empty ID leaves the former ID.
// Another ID ends all that the fleet has found.
func (b *book) ensureEntry(object client.ObjectKey, id core.RuntimeID) *entry {
	e := b.objects[object]
	if e == nil {
		e = &entry{object: object}
		b.objects[object] = e
	}

	if id != "" && id != e.id {
		b.leaveRuntime(e)
		e.id = id
		e.repair = repair{}
	}
	return e
}

// leaveRuntime takes a runtime from its object, unless it belongs to another object now.
func (b *book) leaveRuntime(e *entry) {
	delete(b.stale, e)
	if b.runtimes[e.id] == e {
		delete(b.runtimes, e.id)
	}
}

// forgetObject removes an object. It returns its runtime, empty if that is unknown or has another
// object.
func (b *book) forgetObject(object client.ObjectKey) core.RuntimeID {
	b.mu.Lock()
	defer b.mu.Unlock()

	e := b.ensureEntry(object, "")
	b.leaveRuntime(e)
	delete(b.objects, object)

	for _, other := range b.objects {
		if other.id == e.id {
			return ""
		}
	}
	return e.id
}

// noteStatus notes a report. It returns whether the status has a new text, and whether a text has
// ended.
func (b *book) noteStatus(
	object client.ObjectKey, id core.RuntimeID, status installation.Status, has contents,
) (isNew, ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	e := b.ensureEntry(object, id)
	e.state = installations.State{State: status.State, Reason: status.Reason}
	if status.State == installation.Ready {
		b.noteReady(e, has)
	} else {
		e.ready = time.Time{}
	}

	text := textOf(status)
	isNew = text != "" && text != e.text
	ended = text == "" && e.text != ""
	e.text = text
	return isNew, ended
}

func (b *book) noteReady(e *entry, has contents) {
	e.managers = has.managers
	e.watchers = has.watchers

	e.keepManagers(has.managers)
	b.refreshStale(e)
	e.endWait()
	if e.ready.IsZero() {
		e.ready = time.Now()
	}
	b.runtimes[e.id] = e
}

// textOf is empty for a status that needs no Event. Messages of progress have numbers.
func textOf(status installation.Status) string {
	switch status.State {
	case installation.Failed:
		return string(status.Reason) + ": " + status.Message
	case installation.Progressing:
		return string(status.Reason)
	default:
		return ""
	}
}

// beginWaiting begins the time for which a runtime is not ready, unless that time has begun, and
// returns its length.
func (b *book) beginWaiting(object client.ObjectKey) (age time.Duration) {
	b.withEntry(object, func(e *entry) { age = e.beginWaiting() })
	return age
}

// setFails notes whether the failing lane tries a runtime again.
func (b *book) setFails(object client.ObjectKey, fails bool) {
	b.withEntry(object, func(e *entry) { e.fails = fails })
}

// noteFormer adds managers that the agents of a runtime may not serve any more.
func (b *book) noteFormer(object client.ObjectKey, current, named []core.Manager) {
	b.withEntry(object, func(e *entry) { e.former.replaceTried(current, named) })
}

// noteJoins lets the status of a runtime that joins by itself follow its heartbeats, from the first
// one on.
func (b *book) noteJoins(object client.ObjectKey, joins bool) {
	b.withEntry(object, func(e *entry) {
		e.joins = joins
		if joins {
			b.runtimes[e.id] = e
		}
	})
}

// isInstalled is false for an empty version, and while something is to be verified.
func (b *book) isInstalled(object client.ObjectKey, version string) (installed bool) {
	b.withEntry(object, func(e *entry) { installed = version != "" && e.installed == version && !e.verify })
	return installed
}

func (b *book) noteInstalled(object client.ObjectKey, version string) {
	b.withEntry(object, func(e *entry) { e.installed = version })
}

// takeRepair reports whether the reconcile has to apply all objects. If so, it counts the repair
// and clears the flag. If the reconcile fails, the installer still applies all objects at the next
// reconcile (Runtime.Verify).
func (b *book) takeRepair(object client.ObjectKey) (verify bool) {
	b.withEntry(object, func(e *entry) {
		verify = e.takeVerify()
		if verify {
			b.repairs++
		}
	})
	return verify
}

// endRepair delays the next early reconcile.
func (b *book) endRepair(object client.ObjectKey, took, least time.Duration) {
	b.withEntry(object, func(e *entry) { e.delayNext(took, least) })
}

// early is a reconcile before the next regular reconcile.
type early struct {
	object client.ObjectKey
	after  time.Duration
}

// observeFreshness notes a change of freshness, and returns the early reconcile that is due then. A
// runtime that fails gets no early reconcile, because its lane tries it again. The status of a
// runtime that joins by itself follows each change.
func (b *book) observeFreshness(now *fleet.Status, repairPause, joinPause time.Duration) (next early, isDue bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	e := b.runtimes[now.Runtime]
	if e == nil {
		return early{}, false
	}
	if e.joins {
		return early{object: e.object, after: e.reserveNext(joinPause)}, true
	}
	if !slices.Contains(e.managers, now.Manager) {
		return early{}, false
	}

	isNew := e.observeStatus(now)
	b.refreshStale(e)
	if isNew && now.State == fleet.Stale && b.isOutage() {
		e.verify = false
		return early{}, false
	}
	if !isNew || e.fails {
		return early{}, false
	}
	return early{object: e.object, after: e.reserveNext(repairPause)}, true
}

// refreshStale adds a runtime to the stale runtimes, or removes it, as its state in the fleet says.
func (b *book) refreshStale(e *entry) {
	delete(b.stale, e)
	if e.isStale() {
		b.stale[e] = struct{}{}
	}
}

// isOutage means that many runtimes are stale, for example without a gateway. Reconciles do not
// help.
func (b *book) isOutage() bool {
	const least, part = 20, 10
	return len(b.stale) > max(least, len(b.runtimes)/part)
}
