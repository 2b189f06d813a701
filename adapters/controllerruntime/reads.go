package controllerruntime

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// awaitedFor is longer than the wait for the last resend: 32 s after the one before.
	awaitedFor = time.Minute
	// readFor is the time for which a read counts. Resends of one event take about a minute. Events
	// of strangers come later, too: they must not keep a read for ever. An API server that was
	// restored from a backup has lower versions of the same objects.
	readFor = 2 * awaitedFor
	// maxAwaited and maxAwaitedOfRuntime bound the objects that are remembered. Each object takes
	// about 400 bytes.
	maxAwaited          = 1 << 15
	maxAwaitedOfRuntime = 256
)

// place is one object, as an event names it, for one request of its runtime. All of it must fit the
// object that a reconcile reads. A pod that can reach the webhook can send the uid of any object
// under any other name, and that says nothing about the object.
type place[request comparable] struct {
	request request
	uid     types.UID
	kind    schema.GroupKind
	name    types.NamespacedName
}

// reads remembers the versions that reconciles have read of objects in recent events. An event
// needs no reconcile if a reconcile has read its write. All fields are guarded by mu.
type reads[request comparable] struct {
	mu       sync.Mutex
	runtimes map[core.RuntimeID]map[place[request]]*awaited
	// bySize has the runtimes by the number of their objects, so that a full table finds the
	// runtime with the most objects without a search.
	bySize [maxAwaitedOfRuntime + 1]map[core.RuntimeID]struct{}
	size   int
	swept  time.Time
	// resynced has the last resync of each runtime, for as long as a resend of it may come.
	resynced map[core.RuntimeID]lastResync
	// order counts first events and first deletions, so that a reconcile knows whether it began
	// after them.
	order uint64
	// used means that a reconcile has called [Source.Client], and warned that the log says that no
	// reconcile does.
	used, warned bool
	// matched means that a reconcile has read an object that an event names.
	matched bool
	// rechecks has the writes that a reconcile may have read too early.
	rechecks rechecks[request]
}

// awaited is an object with events that may be sent again. An event writes when it came, and only a
// reconcile writes the known version of the object.
type awaited struct {
	until time.Time
	// sinceOrder is the order of the first event, and deletionOrder that of the first DELETE, 0
	// without a DELETE. Reads of later reconciles count.
	sinceOrder, deletionOrder uint64

	// read is the time of the last read that counts.
	read time.Time
	// version is that of the last read that found the object, 0 if no reconcile has read it.
	version int64
	// absent means that the last read found no object of that name.
	absent bool

	// newest and base are those of the last event. A resend has them, too.
	newest time.Time
	base   int64
}

// observe notes an event, and returns when its request is due. It also schedules the check that
// follows an event which a sender may have sent before the commit. Unused means, once, that
// reconciles had half a minute since the last event to call Client.
func (r *reads[request]) observe(runtime core.RuntimeID, to request, event *core.WatchEvent) (at due, unused bool) {
	if event.UID == "" {
		return dueNow, false
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	now := time.Now()
	r.sweep(now)

	where := place[request]{request: to, uid: event.UID, kind: event.WatchedGVK.GroupKind(), name: event.Watched}
	a := r.runtimes[runtime][where]
	if a == nil {
		a = r.addPlace(runtime, where)
		if a == nil {
			return r.postpone(runtime, to, now), false
		}
	} else if !r.used && !r.warned && a.until.Sub(now) < awaitedFor/2 {
		r.warned = true
		unused = true
	}

	a.until = now.Add(awaitedFor)
	if event.Operation == core.OperationDelete && a.deletionOrder == 0 {
		r.order++
		a.deletionOrder = r.order
	}

	isResend := !event.Time.IsZero() && event.Time.Equal(a.newest) && event.Base == a.base
	a.newest = event.Time
	a.base = event.Base

	switch {
	case a.hasReadLately(event, now):
		return dueNever, unused
	case isResend:
		return dueNow, unused // It comes long after the write.
	default:
		return r.expectRead(runtime, where, event, now), unused
	}
}

// lastResync is a resync that has ended the reads of its runtime.
type lastResync struct {
	// at is the time that the event names, and came is when it came.
	at, came time.Time
}

// endReads makes all earlier reads of a runtime count no more. After a resync, the API server may
// have been restored from a backup: its versions start again below those that were read. A
// reconcile that has begun may have read before that, too. A resend of the resync ends nothing,
// because the reads after the first one are of the restored API server.
func (r *reads[request]) endReads(runtime core.RuntimeID, resync *core.WatchEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()

	now := time.Now()
	r.sweep(now)
	if last := r.resynced[runtime]; !resync.Time.IsZero() && resync.Time.Equal(last.at) {
		return
	}
	if r.resynced == nil {
		r.resynced = make(map[core.RuntimeID]lastResync)
	}
	r.resynced[runtime] = lastResync{at: resync.Time, came: now}

	r.order++
	for _, a := range r.runtimes[runtime] {
		a.sinceOrder = r.order
		a.version = 0
		a.absent = false
		if a.deletionOrder > 0 {
			a.deletionOrder = r.order
		}
	}
}

// hasReadLately reports whether a reconcile has read the write behind an event, and whether that
// read still counts.
func (a *awaited) hasReadLately(event *core.WatchEvent, now time.Time) bool {
	return now.Sub(a.read) < readFor && a.hasRead(event)
}

// hasRead reports whether a reconcile has read the write behind an event. The event decides about
// nothing but itself. Absence says less than a version, because an answer has no version of
// absence: it covers a deletion, and a write on a version that a reconcile has read before.
func (a *awaited) hasRead(event *core.WatchEvent) bool {
	if a.version > event.Base {
		return true
	}
	if !a.absent {
		return false
	}
	deleted := event.Operation == core.OperationDelete
	ended := a.version > 0 && a.version == event.Base
	return deleted || ended
}

// addPlace returns nil without room. In a full table, the runtime with the most objects gives way.
// Otherwise a few runtimes with ever new objects would take the places of all.
func (r *reads[request]) addPlace(runtime core.RuntimeID, at place[request]) *awaited {
	size := len(r.runtimes[runtime])
	if size == maxAwaitedOfRuntime {
		return nil
	}
	if r.size >= maxAwaited && !r.evictPlace(size) {
		return nil
	}

	if r.runtimes[runtime] == nil {
		r.runtimes[runtime] = make(map[place[request]]*awaited)
	}
	r.order++
	a := &awaited{sinceOrder: r.order}
	r.runtimes[runtime][at] = a
	r.noteSize(runtime, size, size+1)
	return a
}

// evictPlace forgets an object of the runtime that has the most, unless that one has hardly more
// objects than size. It reports whether there is room now.
func (r *reads[request]) evictPlace(size int) bool {
	for most := maxAwaitedOfRuntime; most > size+1; most-- {
		for runtime := range r.bySize[most] {
			for at := range r.runtimes[runtime] {
				delete(r.runtimes[runtime], at)
				r.noteSize(runtime, most, most-1)
				return true
			}
		}
	}
	return false
}

// noteSize keeps the number of objects of a runtime, and removes a runtime without objects.
func (r *reads[request]) noteSize(runtime core.RuntimeID, before, after int) {
	r.size += after - before
	delete(r.bySize[before], runtime)
	if after == 0 {
		delete(r.runtimes, runtime)
		return
	}

	if r.bySize[after] == nil {
		r.bySize[after] = make(map[core.RuntimeID]struct{})
	}
	r.bySize[after][runtime] = struct{}{}
}

// sweep forgets objects without events, at most once in half of awaitedFor.
func (r *reads[request]) sweep(now time.Time) {
	if now.Sub(r.swept) < awaitedFor/2 {
		return
	}

	r.swept = now

	maps.DeleteFunc(r.resynced, func(_ core.RuntimeID, last lastResync) bool { return now.Sub(last.came) > readFor })
	for runtime, objects := range r.runtimes {
		before := len(objects)
		maps.DeleteFunc(objects, func(_ place[request], a *awaited) bool { return a.until.Before(now) })
		r.noteSize(runtime, before, len(objects))
	}
}

// Client wraps c so that the source learns which objects one reconcile reads. Call Client at the
// beginning of each reconcile, with its request and the runtime to which c is connected. The source
// then acknowledges an event without a reconcile if the last reconcile has read the object after
// the write. Two of three events of a write are such resends.
//
// Only the first read of an object counts, by Get or List, in a reconcile that began after an event
// of the object. The UID, group, kind and name of the object must match the event. A NotFound error
// counts if Get has no options and c itself returns the error. That error must be a status of an
// API server that names the object, its group and its resource. It must not come from a cache. An
// event of contracts v1 and v2 is always reconciled, because it does not name its write.
func (s *Source[request]) Client(r request, id core.RuntimeID, c client.Client) client.Client {
	to := s.target.Load()
	if to == nil {
		return c
	}

	to.strays.noteReconciled(r)
	to.noteBegin(id, r)
	return &reading[request]{
		Client: c, reads: &to.reads, request: r, runtime: id, began: to.reads.beginReconcile(),
		known: make(map[*awaited]bool),
	}
}

// beginReconcile returns the order of the last event before a reconcile.
func (r *reads[request]) beginReconcile() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used = true
	return r.order
}

// reading is the client of one reconcile. It notes its reads in the table.
type reading[request comparable] struct {
	client.Client

	reads   *reads[request]
	request request
	runtime core.RuntimeID
	began   uint64
	// known has the objects that were read. The reconcile may not act on a later read. It is
	// guarded by the lock of reads.
	known map[*awaited]bool
}

// identity is the identity of an object in an answer.
type identity struct {
	uid  types.UID
	name types.NamespacedName
}

// answer is the result of one read.
type answer struct {
	kind     schema.GroupKind
	versions map[identity]int64
	// covers reports whether the answer has the object of a name, or shows that there is none.
	covers func(types.NamespacedName) bool
	// absent means that an API server says that there is no object of the name.
	absent bool
}

func (r *reading[request]) Get(
	ctx context.Context, name client.ObjectKey, object client.Object, opts ...client.GetOption,
) error {
	err := r.Client.Get(ctx, name, object, opts...)
	isNotFound := apierrors.IsNotFound(err)
	if err != nil && !isNotFound {
		return err // As it is.
	}

	named := func(other types.NamespacedName) bool { return other == name }
	if !r.isAwaited(named) {
		return err // As it is.
	}
	kind, unknown := r.GroupVersionKindFor(object)
	if unknown != nil {
		return err // As it is.
	}

	read := answer{kind: kind.GroupKind(), covers: named}
	if isNotFound {
		read.absent = len(opts) == 0 && r.isAbsence(err, kind, name.Name)
	} else {
		read.versions = versionsOf(identity{object.GetUID(), name}, object)
	}

	r.noteAnswer(read)
	return err // As it is.
}

func (r *reading[request]) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := r.Client.List(ctx, list, opts...)
	if err != nil {
		return err // As it is.
	}

	in := (&client.ListOptions{}).ApplyOptions(opts).Namespace
	inNamespace := func(name types.NamespacedName) bool { return in == "" || in == name.Namespace }
	if !r.isAwaited(inNamespace) {
		return nil
	}
	kind, unknown := r.GroupVersionKindFor(list)
	if unknown != nil {
		return nil //nolint:nilerr // The list was read.
	}

	read := answer{versions: make(map[identity]int64), covers: inNamespace}
	read.kind = schema.GroupKind{Group: kind.Group, Kind: strings.TrimSuffix(kind.Kind, "List")}
	if list.GetContinue() != "" {
		read.covers = func(types.NamespacedName) bool { return false } // It may be in the next part.
	}

	items, _ := meta.ExtractList(list)
	for _, item := range items {
		object, err := meta.Accessor(item)
		if err != nil {
			continue
		}
		name := types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
		maps.Copy(read.versions, versionsOf(identity{object.GetUID(), name}, object))
	}

	r.noteAnswer(read)
	return nil
}

// versionsOf is empty for an object with a version that is no number, because its order is unknown.
func versionsOf(id identity, object metav1.Object) map[identity]int64 {
	version, err := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
	if err != nil {
		return nil
	}
	return map[identity]int64{id: version}
}

// isAwaited reports whether an event has named an object that a read may be about.
func (r *reading[request]) isAwaited(covers func(types.NamespacedName) bool) bool {
	r.reads.mu.Lock()
	defer r.reads.mu.Unlock()

	for at := range r.reads.runtimes[r.runtime] {
		if at.request == r.request && covers(at.name) {
			return true
		}
	}
	return false
}

// isAbsence reports whether an error is the status of an API server for this one object. Other
// NotFounds reach a reconcile, too: of a proxy, of a version that is not served, of the cluster
// itself, or of the Secret with its kubeconfig. A client that makes its connection late returns
// such errors wrapped, or with another name or resource.
func (r *reading[request]) isAbsence(err error, kind schema.GroupVersionKind, name string) bool {
	status, ok := err.(*apierrors.StatusError) //nolint:errorlint // A wrapped one may be of something else.
	if !ok || apierrors.IsUnexpectedServerError(err) {
		return false
	}
	details := status.ErrStatus.Details
	if details == nil || details.Kind == "" || details.Name != name || details.Group != kind.Group {
		return false
	}

	mapper := r.RESTMapper()
	if mapper == nil {
		return false
	}

	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	return err == nil && mapping.Resource.Resource == details.Kind
}

// noteAnswer keeps the result of a read for the objects that events name.
func (r *reading[request]) noteAnswer(read answer) {
	r.reads.mu.Lock()
	defer r.reads.mu.Unlock()

	now := time.Now()
	for at, a := range r.reads.runtimes[r.runtime] {
		if at.request != r.request || at.kind != read.kind {
			continue
		}

		version, found := read.versions[identity{at.uid, at.name}]
		if found {
			a.absent = false // Also by a later read of a reconcile: it may act on that one.
		}
		if !found && !read.covers(at.name) {
			continue
		}

		r.reads.matched = true
		if r.known[a] {
			continue
		}

		if !found {
			r.known[a] = true
			wasDeleted := a.deletionOrder > 0 && a.deletionOrder <= r.began
			existed := a.version > 0 || wasDeleted
			a.absent = read.absent && existed && a.sinceOrder <= r.began
			if a.absent {
				a.read = now
			}
			continue
		}

		if a.sinceOrder <= r.began {
			r.known[a] = true
			a.version = version
			a.read = now
		}
	}
}
