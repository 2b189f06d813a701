package controllerruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// DomainAnnotation is the default annotation with the domain of a runtime, on the object that
// stands for the runtime.
const DomainAnnotation = "skr-domain"

const (
	indexRuntime = "runtime-watcher/runtime"
	indexOwner   = "runtime-watcher/owner"
	indexDomain  = "runtime-watcher/domain"
)

// ByName identifies a runtime by the name of its object.
func ByName(object metav1.Object) core.RuntimeID { return core.RuntimeID(object.GetName()) }

// ByLabel identifies a runtime by the value of that label. An object without it has no identity.
func ByLabel(label string) func(object metav1.Object) core.RuntimeID {
	return func(object metav1.Object) core.RuntimeID { return core.RuntimeID(object.GetLabels()[label]) }
}

// RuntimesOptions are the optional settings of [NewRuntimes]. The zero value is the documented
// default.
type RuntimesOptions struct {
	// DomainAnnotation is the annotation with the domain of a runtime. Default: [DomainAnnotation].
	DomainAnnotation string
	// Fleet forgets a runtime when the last object of this kind that stands for it is deleted, or
	// gets another identity. Otherwise the runtime is stale there until
	// [fleet.Options].ForgetAfter. Objects of another kind do not count: use one Runtimes for each
	// fleet. Default: none.
	Fleet *fleet.Fleet
	// Managers are those that each runtime has an agent for. Fleet expects their heartbeats, as
	// [fleet.Fleet.Expect] does, so that a runtime that is dead is stale after a restart of the
	// operator, too. They need a Fleet. Default: none is expected.
	Managers []core.Manager
}

// Runtimes finds the objects that stand for runtimes, by indexes of a cache. It answers from
// memory. Its errors wrap [core.ErrNotReady] until the cache is synced, and after the cache has
// stopped.
//
// The cache has only the metadata of the objects, by a watch of its own. A controller of the same
// kind shares that watch if it uses builder.OnlyMetadata. Runtimes is safe for concurrent use.
type Runtimes struct {
	informer   cache.Informer
	lookup     lookup
	kind       schema.GroupVersionKind
	identify   func(object metav1.Object) core.RuntimeID
	annotation string
}

// NewRuntimes adds kind to a cache, usually that of a controller manager that has not started. It
// asks the API server for the kind, and fails if the kind is unknown there. The operator needs the
// rights to list and watch the kind. A cache can take a kind once, so the result must be shared.
//
// identify returns the runtime that an object stands for, from its metadata. "" means that the
// object has no identity. Such an object can still be the owner of an event, and only its domain
// proves the sender. identify is called concurrently and must not change the object.
func NewRuntimes(
	ctx context.Context, objects cache.Cache, kind schema.GroupVersionKind,
	identify func(object metav1.Object) core.RuntimeID, opts RuntimesOptions,
) (*Runtimes, error) {
	if objects == nil || kind.Kind == "" || kind.Version == "" || identify == nil {
		return nil, fmt.Errorf("runtimes of kind %q: want a cache, a kind with version and an identify function", kind)
	}

	if opts.Fleet == nil && len(opts.Managers) > 0 {
		return nil, errors.New("option Managers: want it only with Fleet")
	}
	for _, manager := range opts.Managers {
		if _, err := core.ParseManager(string(manager)); err != nil {
			return nil, fmt.Errorf("option Managers: %w", err)
		}
	}
	opts.DomainAnnotation = cmp.Or(opts.DomainAnnotation, DomainAnnotation)
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)

	informer, err := objects.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch the runtimes of kind %q: %w", kind, err)
	}

	lookup, err := newLookup(ctx, objects, informer, kind, indexes(identify, opts.DomainAnnotation))
	if err != nil {
		return nil, fmt.Errorf("index the runtimes of kind %q, once for each cache: share the result: %w", kind, err)
	}
	r := &Runtimes{
		informer: informer, lookup: lookup, kind: kind, identify: identify, annotation: opts.DomainAnnotation,
	}
	if opts.Fleet != nil {
		_, err = informer.AddEventHandler(r.keepIn(opts.Fleet, opts.Managers))
	}
	if err != nil {
		return nil, fmt.Errorf("watch kind %q for the fleet: %w", kind, err)
	}
	return r, nil
}

// keepIn returns a handler that expects the runtimes of all objects, and forgets those for which no
// object stands any more.
func (r *Runtimes) keepIn(known *fleet.Fleet, managers []core.Manager) toolscache.ResourceEventHandler {
	expect := func(object any) {
		if id := r.idOf(object); id != "" {
			for _, manager := range managers {
				known.Expect(id, manager)
			}
		}
	}
	forget := func(object any) {
		id := r.idOf(object)
		if id == "" {
			return
		}
		// It answers from memory.
		if left, err := r.lookup(context.Background(), indexRuntime, string(id)); err == nil && len(left) == 0 {
			known.Forget(id)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    expect,
		DeleteFunc: forget,
		UpdateFunc: func(before, after any) {
			if r.idOf(before) != r.idOf(after) {
				forget(before)
				expect(after)
			}
		},
	}
}

// idOf returns "" for an object without identity, and for anything else.
func (r *Runtimes) idOf(object any) core.RuntimeID {
	if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	if metadata, ok := object.(metav1.Object); ok {
		return r.identify(metadata)
	}
	return ""
}

func indexes(identify func(object metav1.Object) core.RuntimeID, annotation string) map[string]client.IndexerFunc {
	return map[string]client.IndexerFunc{
		indexRuntime: func(object client.Object) []string { return notEmpty(string(identify(object))) },
		// A Get by key fails for a namespace that is not in the cache. The index finds no object.
		indexOwner: func(object client.Object) []string {
			return []string{client.ObjectKeyFromObject(object).String()}
		},
		indexDomain: func(object client.Object) []string {
			return notEmpty(canonical(object.GetAnnotations()[annotation]))
		},
	}
}

// notEmpty returns no value for "", so that objects without a value are not in the index.
func notEmpty(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

// canonical is equal for two domains that equal the same SAN. These are spellings of one DNS name
// (RFC 4343, section 3; RFC 1034, section 3.1) or of one IP address (RFC 4291, section 2.2).
func canonical(domain string) string {
	if addr, err := netip.ParseAddr(domain); err == nil {
		return addr.Unmap().String()
	}
	return strings.ToLower(strings.TrimSuffix(domain, "."))
}

// Objects returns the names of the objects that stand for a runtime, in no order. None is not an
// error.
func (r *Runtimes) Objects(ctx context.Context, runtime core.RuntimeID) ([]types.NamespacedName, error) {
	objects, err := r.find(ctx, indexRuntime, string(runtime))
	if err != nil {
		return nil, err
	}
	names := make([]types.NamespacedName, len(objects))
	for i, object := range objects {
		names[i] = client.ObjectKeyFromObject(object)
	}
	return names, nil
}

// ID returns the runtime that an object stands for by the function of [NewRuntimes]. It returns ""
// if there is no such object, or if the object has no identity. A reconciler needs it to query a
// fleet.
func (r *Runtimes) ID(ctx context.Context, object types.NamespacedName) (core.RuntimeID, error) {
	found, err := r.find(ctx, indexOwner, object.String())
	if err != nil || len(found) == 0 {
		return "", err
	}
	return r.identify(found[0]), nil
}

// find returns the objects with a value in an index. They belong to the cache and must not be
// changed.
func (r *Runtimes) find(ctx context.Context, index, value string) ([]*metav1.PartialObjectMetadata, error) {
	// A list would block until the first sync, and the sender with it.
	if !r.informer.HasSynced() || r.informer.IsStopped() {
		return nil, fmt.Errorf("%w: the cache of %s is not synced", core.ErrNotReady, r.kind.Kind)
	}
	objects, err := r.lookup(ctx, index, value)
	if err != nil {
		return nil, fmt.Errorf("%w: read the cache of %s: %w", core.ErrNotReady, r.kind.Kind, err)
	}
	return objects, nil
}

// lookup returns the objects with a value in an index. They belong to the cache and must not be
// changed.
type lookup func(ctx context.Context, index, value string) ([]*metav1.PartialObjectMetadata, error)

// newLookup adds indexes to a cache. It reads the indexer of the informer itself, because a list
// through the cache takes several times as long. A cache of several namespaces has an indexer for
// each, and only the list reads them all.
func newLookup(
	ctx context.Context, objects cache.Cache, informer cache.Informer, kind schema.GroupVersionKind,
	indexes map[string]client.IndexerFunc,
) (lookup, error) {
	if indexed, ok := informer.(interface{ GetIndexer() toolscache.Indexer }); ok {
		return lookInIndexer(indexed.GetIndexer()), informer.AddIndexers(indexersOf(indexes))
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	for name, extract := range indexes {
		if err := objects.IndexField(ctx, object, name, extract); err != nil {
			return nil, err // The caller wraps it.
		}
	}
	return lookInLists(objects, kind), nil
}

func indexersOf(indexes map[string]client.IndexerFunc) toolscache.Indexers {
	indexers := make(toolscache.Indexers, len(indexes))
	for name, extract := range indexes {
		indexers[name] = func(object any) ([]string, error) {
			return extract(metadataOf(object)), nil
		}
	}
	return indexers
}

func lookInIndexer(indexer toolscache.Indexer) lookup {
	return func(_ context.Context, index, value string) ([]*metav1.PartialObjectMetadata, error) {
		found, err := indexer.ByIndex(index, value)
		objects := make([]*metav1.PartialObjectMetadata, len(found))
		for i, object := range found {
			objects[i] = metadataOf(object)
		}
		return objects, err
	}
}

// metadataOf returns an object of the indexer, which has no others.
func metadataOf(object any) *metav1.PartialObjectMetadata {
	metadata, _ := object.(*metav1.PartialObjectMetadata)
	return metadata
}

func lookInLists(reader client.Reader, kind schema.GroupVersionKind) lookup {
	return func(ctx context.Context, index, value string) ([]*metav1.PartialObjectMetadata, error) {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		err := reader.List(ctx, list, client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy)
		objects := make([]*metav1.PartialObjectMetadata, len(list.Items))
		for i := range list.Items {
			objects[i] = &list.Items[i]
		}
		return objects, err
	}
}
