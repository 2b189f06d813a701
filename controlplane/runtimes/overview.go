package runtimes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/installations"
)

// neverHeardAfter is how long a runtime that is ready may send nothing. Agents send a heartbeat
// every 30 s.
const neverHeardAfter = 5 * time.Minute

type (
	// Installations has the states of the agents that a control plane installs in runtimes. It is a
	// copy. Package statuspage serves it, and adapters/prometheus measures it.
	Installations = installations.All
	// FailedInstallation is an object that represents a runtime, with the reason of its failure.
	FailedInstallation = installations.Failed
	// InstallationState is a state, such as Ready, with its reason in CamelCase.
	InstallationState = installations.State
)

// Overview has the states of all runtimes, as the controllers of this process have seen them. The
// zero value is ready, for [Options.Overview]. It may be used concurrently. Its Installations are
// for metrics, and for statuspage.InstallationsHandler.
type Overview struct {
	mu        sync.Mutex
	books     []*book // one for each SetUp
	authority certificates.Status
}

func (o *Overview) newBook() *book {
	o.mu.Lock()
	defer o.mu.Unlock()
	added := &book{
		objects: make(map[client.ObjectKey]*entry), runtimes: make(map[core.RuntimeID]*entry),
		stale: make(map[*entry]struct{}),
	}
	o.books = append(o.books, added)
	return added
}

func (o *Overview) noteAuthority(status certificates.Status) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.authority = status
}

// book has the state of each object of one controller. The reconciler writes it, and the metrics
// and the status page read it. mu guards all fields except status, which does not change.
type book struct {
	mu       sync.Mutex
	objects  map[client.ObjectKey]*entry
	runtimes map[core.RuntimeID]*entry // those of objects that were ready, or that join by themselves
	stale    map[*entry]struct{}       // those of runtimes that the fleet finds stale
	watchers watchers
	repairs  int64
	status   func(core.RuntimeID, core.Manager) fleet.Status // of a fleet, for runtimes that never sent anything, or nil
}

// entry is the state of one object. The lock of its book guards it.
type entry struct {
	object   client.ObjectKey
	id       core.RuntimeID
	state    InstallationState // zero until the first report
	ready    time.Time         // since when, zero if it is not
	managers []core.Manager    // that its agents send to, since it was ready
	watchers watchers          // installed there.

	text    string                     // the last text that was reported
	waiting time.Time                  // since when the runtime is not ready.
	joins   bool                       // by itself
	fails   bool                       // in the failing lane
	tried   []core.Manager             // managers of the last reconcile
	former  map[core.Manager]time.Time // managers that its agents may not serve any more, since when
	repair
}

type contents struct {
	watches  []watch.Watch
	managers []core.Manager
	watchers watchers
}

// watchers are the generations of the Watchers that are installed in a runtime. Runtimes share one
// until a Watcher changes.
type watchers map[types.NamespacedName]int64

func (b *book) share(now watchers) watchers {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !maps.Equal(b.watchers, now) {
		b.watchers = now
	}
	return b.watchers
}

// Installed returns in how many of all runtimes a generation of a Watcher is installed, for
// watcher.Options.
func (o *Overview) Installed(watcher types.NamespacedName, generation int64) (installed, all int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, b := range o.books {
		b.each(func(e *entry) {
			all++
			if there, ok := e.watchers[watcher]; ok && there == generation && !e.ready.IsZero() {
				installed++
			}
		})
	}
	return installed, all
}

func (b *book) each(visit func(e *entry)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.objects {
		if e.state.State != "" {
			visit(e)
		}
	}
}

// Installations returns the current states. With 10,000 runtimes it takes a few milliseconds.
func (o *Overview) Installations() Installations {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := Installations{
		Runtimes: make(map[InstallationState]int), NeverHeard: make(map[core.Manager][]core.RuntimeID),
		Phase: o.authority.Phase, Waiting: slices.Clone(o.authority.Waiting), Overdue: slices.Clone(o.authority.Overdue),
	}
	for _, b := range o.books {
		b.each(func(e *entry) { b.sum(&all, e) })
		b.locked(func() { all.Repairs += b.repairs })
	}
	for _, runtimes := range all.NeverHeard {
		slices.Sort(runtimes)
	}
	slices.SortFunc(all.Failed, func(a, b FailedInstallation) int {
		return cmp.Compare(a.Object.String(), b.Object.String())
	})
	return all
}

func (b *book) sum(all *Installations, e *entry) {
	all.Runtimes[e.state]++
	if e.state.State == installation.Failed {
		all.Failed = append(all.Failed, FailedInstallation{Object: e.object, Runtime: e.id, Reason: e.state.Reason})
	}
	if e.ready.IsZero() {
		return
	}
	for _, manager := range e.managers {
		silent := all.NeverHeard[manager] // Each manager has an entry.
		if b.silent(e, manager) {
			silent = append(silent, e.id)
		}
		all.NeverHeard[manager] = silent
	}
}

func (b *book) silent(e *entry, manager core.Manager) bool {
	return b.status != nil && time.Since(e.ready) > neverHeardAfter && b.status(e.id, manager).LastSeen.IsZero()
}

// begin makes an object known before its first report: a change of Watchers must reach it.
func (b *book) begin(object client.ObjectKey, id core.RuntimeID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(object, id)
}

// of leaves the former id for an empty one. Another id ends all that the fleet has found.
func (b *book) of(object client.ObjectKey, id core.RuntimeID) *entry {
	e := b.objects[object]
	if e == nil {
		e = &entry{object: object}
		b.objects[object] = e
	}
	if id != "" && id != e.id {
		b.leave(e)
		e.id, e.repair = id, repair{}
	}
	return e
}

// leave takes a runtime from its object, unless it belongs to another object now.
func (b *book) leave(e *entry) {
	delete(b.stale, e)
	if b.runtimes[e.id] == e {
		delete(b.runtimes, e.id)
	}
}

func (b *book) requests() (all []reconcile.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for object := range b.objects {
		all = append(all, reconcile.Request{NamespacedName: object})
	}
	return all
}

// note reports whether the status has a new text, and whether it has none after one.
func (b *book) note(
	object client.ObjectKey, id core.RuntimeID, status installation.Status, has contents,
) (isNew, ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of(object, id)
	e.state = InstallationState{State: status.State, Reason: status.Reason}
	if status.State == installation.Ready {
		maps.DeleteFunc(e.broken, func(m core.Manager, _ fleet.Condition) bool { return !slices.Contains(has.managers, m) })
		b.noteStale(e)
		e.managers, e.watchers, e.waiting = has.managers, has.watchers, time.Time{}
		if e.ready.IsZero() {
			e.ready = time.Now()
		}
		b.runtimes[e.id] = e
	} else {
		e.ready = time.Time{}
	}
	text := textOf(status)
	isNew, ended = text != "" && text != e.text, text == "" && e.text != ""
	e.text = text
	return isNew, ended
}

func (b *book) forget(object client.ObjectKey) core.RuntimeID {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of(object, "")
	b.leave(e)
	delete(b.objects, object)
	for _, other := range b.objects {
		if other.id == e.id {
			return ""
		}
	}
	return e.id
}

func (b *book) edit(object client.ObjectKey, change func(e *entry)) {
	b.locked(func() {
		if e := b.objects[object]; e != nil {
			change(e)
		}
	})
}

func (b *book) locked(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// ReasonInstalled is the reason of the condition of an agent that answers.
const ReasonInstalled installation.Reason = "Installed"

// ReportCondition returns a function for [Options.Report]. It keeps a condition of that type in
// status.conditions of the objects: True with the reason Installed, or False with the reason of the
// status. The kind must have a status subresource, and conditions in the form of metav1.Condition.
// The operator needs the right to patch it.
//
// The client should not be a cache of the kind, such as client.New makes it. A condition is read
// and written only when it changes, and read again after an hour.
func ReportCondition(
	c client.Client, conditionType string,
) func(ctx context.Context, object client.Object, status installation.Status) error {
	return (&conditions{client: c, kind: conditionType, written: cache.NewExpiring()}).report
}

type conditions struct {
	client  client.Client
	kind    string
	written *cache.Expiring // of metav1.Condition, by the key of the object
}

// writeAgainAfter is the time after which a condition is corrected that another writer has changed
// or removed.
const writeAgainAfter = time.Hour

func (w *conditions) report(ctx context.Context, object client.Object, status installation.Status) error {
	key, wanted := client.ObjectKeyFromObject(object), w.condition(object, status)
	if last, _ := w.written.Get(key); last == wanted {
		return nil
	}
	gvk, err := apiutil.GVKForObject(object, w.client.Scheme())
	if err != nil {
		return fmt.Errorf("condition %s: %w", w.kind, err)
	}
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(gvk)
	err = w.client.Get(ctx, key, live)
	if err == nil {
		err = w.write(ctx, live, wanted)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("condition %s: %w", w.kind, err)
	}
	w.written.Set(key, wanted, writeAgainAfter)
	if status.State == installation.Removed { // The object ends.
		w.written.Delete(key)
	}
	return nil
}

func (w *conditions) condition(object client.Object, status installation.Status) metav1.Condition {
	ready := metav1.ConditionFalse
	switch status.State {
	case installation.Ready:
		ready, status = metav1.ConditionTrue, installed(status)
	case installation.Removed:
		status.Reason = installation.Reason(status.State)
		status.Message = "the agent is removed"
	case installation.Progressing, installation.Failed:
	}
	return metav1.Condition{
		Type: w.kind, Status: ready, Reason: string(status.Reason), Message: status.Message,
		ObservedGeneration: object.GetGeneration(),
	}
}

// write replaces the list of conditions, so it fails when another writer has changed the object.
func (w *conditions) write(ctx context.Context, live *unstructured.Unstructured, wanted metav1.Condition) error {
	var stored struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(live.Object, &stored); err != nil {
		return err
	}
	if !meta.SetStatusCondition(&stored.Status.Conditions, wanted) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]string{"resourceVersion": live.GetResourceVersion()}, "status": stored.Status,
	})
	if err != nil {
		return err
	}
	return w.client.Status().Patch(ctx, live, client.RawPatch(types.MergePatchType, patch))
}
