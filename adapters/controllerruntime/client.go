package controllerruntime

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
)

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

// reading is the client of one reconcile. It notes its reads in the table.
type reading[request comparable] struct {
	client.Client

	reads   *reads[request]
	request request
	runtime core.RuntimeID
	began   uint64
	// known contains the objects that were read. The reconcile may not act on a later read. It is
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

// versionsOf is empty for an object with a version that is not a number, because its order is
// unknown.
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
	if details == nil || details.Kind == "" {
		return false
	}

	isOfObject := details.Name == name && details.Group == kind.Group
	if !isOfObject {
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
