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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// awaitedFor is longer than the wait for the last resend: 32 s after the one before.
	awaitedFor = time.Minute
	// maxAwaited and maxAwaitedOfScope bound the objects that are remembered. Each takes about 300
	// bytes.
	maxAwaited        = 1 << 15
	maxAwaitedOfScope = 256
)

type scope[request comparable] struct {
	request request
	runtime core.RuntimeID
}

// reads has the versions that reconciles have read of the objects that recent events name. An event
// needs no reconcile if one has read its write.
type reads[request comparable] struct {
	mu     sync.Mutex
	scopes map[scope[request]]map[types.UID]*awaited
	size   int
	swept  time.Time
	// turn orders events and reconciles.
	turn uint64
	// used means that a reconcile has called [Source.Client], or that it is logged that none does.
	used bool
}

// awaited is an object with events that may be sent again.
type awaited struct {
	kind  schema.GroupKind
	name  types.NamespacedName
	until time.Time
	// since is the turn of the first event, and existed that of the first one that shows that the
	// object exists, 0 without one. Reads of later reconciles count.
	since, existed uint64
	// version is the highest that a reconcile has read. gone is whether one found no object.
	version int64
	gone    bool
}

// sees reports whether a reconcile has seen the write behind an event, and awaits the next one.
// Unused means, once, that reconciles had half a minute since the last event to call Client.
func (r *reads[request]) sees(s scope[request], event *core.WatchEvent) (seen, unused bool) {
	if event.UID == "" {
		return false, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.sweep(now)
	a := r.scopes[s][event.UID]
	if a == nil {
		if a = r.add(s, event); a == nil {
			return false, false
		}
	} else if !r.used && a.until.Sub(now) < awaitedFor/2 {
		r.used, unused = true, true
	}
	if a.until = now.Add(awaitedFor); event.Base > 0 && a.existed == 0 {
		r.turn++
		a.existed = r.turn
	}
	return a.version > event.Base || a.gone, unused
}

// add returns nil without room.
func (r *reads[request]) add(s scope[request], event *core.WatchEvent) *awaited {
	if r.size == maxAwaited || len(r.scopes[s]) == maxAwaitedOfScope {
		return nil
	}
	if r.scopes[s] == nil {
		r.scopes[s] = make(map[types.UID]*awaited)
	}
	r.turn++
	r.size++
	a := &awaited{kind: event.WatchedGVK.GroupKind(), name: event.Watched, since: r.turn}
	r.scopes[s][event.UID] = a
	return a
}

// sweep forgets objects without events, at most once in half of awaitedFor.
func (r *reads[request]) sweep(now time.Time) {
	if now.Sub(r.swept) < awaitedFor/2 {
		return
	}
	r.swept, r.size = now, 0
	maps.DeleteFunc(r.scopes, func(_ scope[request], objects map[types.UID]*awaited) bool {
		maps.DeleteFunc(objects, func(_ types.UID, a *awaited) bool { return a.until.Before(now) })
		r.size += len(objects)
		return len(objects) == 0
	})
}

// Client returns c for one reconcile: call it at the beginning of each, with the request and the
// runtime that c is connected to. The source then acknowledges an event without a reconcile if that
// one has read the object after the write. Two of three events of a write are such resends.
//
// The first read of an object counts, by Get or List, in a reconcile that began after an event of
// the object. A NotFound counts if Get has no options, and an API server has written it. It must
// not come from a cache. An event of contracts v1 and v2 is always reconciled, because it does not
// name its write.
func (s *Source[request]) Client(r request, id core.RuntimeID, c client.Client) client.Client {
	to := s.target.Load()
	if to == nil {
		return c
	}
	return &reading[request]{
		Client: c, reads: &to.reads, scope: scope[request]{r, id}, turn: to.reads.now(),
		known: make(map[*awaited]bool),
	}
}

func (r *reads[request]) now() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used = true
	return r.turn
}

type reading[request comparable] struct {
	client.Client

	reads *reads[request]
	scope scope[request]
	turn  uint64
	// known has the objects that were read. The reconcile may not act on a later read.
	known map[*awaited]bool
}

func (r *reading[request]) Get(
	ctx context.Context, name client.ObjectKey, object client.Object, opts ...client.GetOption,
) error {
	err := r.Client.Get(ctx, name, object, opts...)
	is := func(other types.NamespacedName) bool { return other == name }
	switch {
	case err == nil:
		r.note(object, []runtime.Object{object}, false, is)
	case apierrors.IsNotFound(err):
		r.note(object, nil, !apierrors.IsUnexpectedServerError(err) && len(opts) == 0, is)
	}
	return err // As it is.
}

func (r *reading[request]) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := r.Client.List(ctx, list, opts...)
	if err != nil {
		return err // As it is.
	}
	found, _ := meta.ExtractList(list)
	in := (&client.ListOptions{}).ApplyOptions(opts).Namespace
	r.note(list, found, false, func(other types.NamespacedName) bool {
		return list.GetContinue() == "" && (in == "" || in == other.Namespace)
	})
	return nil
}

// note keeps the versions of the objects that a read has found, and that it has not returned the
// others with some names. They are gone if they existed when an event was sent.
func (r *reading[request]) note(
	read runtime.Object, found []runtime.Object, gone bool, named func(types.NamespacedName) bool,
) {
	var others []*awaited
	r.reads.mu.Lock()
	objects := r.reads.scopes[r.scope]
	for _, item := range found {
		object, err := meta.Accessor(item)
		if err != nil {
			continue
		}
		version, err := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
		if a := objects[object.GetUID()]; err == nil && a != nil && a.since <= r.turn && !r.known[a] {
			r.known[a], a.version = true, max(a.version, version)
		}
	}
	for _, a := range objects {
		if named(a.name) && !r.known[a] {
			others = append(others, a)
		}
	}
	r.reads.mu.Unlock()
	if len(others) == 0 {
		return
	}
	kind, err := r.GroupVersionKindFor(read)
	group := schema.GroupKind{Group: kind.Group, Kind: strings.TrimSuffix(kind.Kind, "List")}
	r.reads.mu.Lock()
	defer r.reads.mu.Unlock()
	for _, a := range others {
		if err == nil && a.kind == group {
			r.known[a] = true
			a.gone = a.gone || gone && a.existed > 0 && a.existed <= r.turn
		}
	}
}
