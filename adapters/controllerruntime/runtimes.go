package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// DomainAnnotation is the annotation of an object that stands for a runtime, in which the domain of the runtime is
// registered.
const DomainAnnotation = "skr-domain"

// The indexes that Runtimes adds to the cache.
const (
	indexRuntime = "runtime-watcher/runtime"
	indexOwner   = "runtime-watcher/owner"
	indexDomain  = "runtime-watcher/domain"
)

// errIncomplete names what NewRuntimes can not do without.
var errIncomplete = errors.New("want a cache, a kind with version and an identify function")

// IdentifyFunc returns the runtime that an object stands for, from its metadata. "" means that the object does not tell:
// such an object is known as the owner of an event only, and proved by its domain alone. The function must not change the
// object, and is called concurrently.
type IdentifyFunc func(object metav1.Object) core.RuntimeID

// ByName identifies a runtime by the name of its object.
func ByName(object metav1.Object) core.RuntimeID { return core.RuntimeID(object.GetName()) }

// ByLabel identifies a runtime by that label of its object.
func ByLabel(label string) IdentifyFunc {
	return func(object metav1.Object) core.RuntimeID { return core.RuntimeID(object.GetLabels()[label]) }
}

// RuntimesOptions are the choices of [NewRuntimes]. The zero value is good.
type RuntimesOptions struct {
	// DomainAnnotation is where the domain of a runtime is registered. Default: [DomainAnnotation].
	DomainAnnotation string
}

func (o RuntimesOptions) withDefaults() RuntimesOptions {
	if o.DomainAnnotation == "" {
		o.DomainAnnotation = DomainAnnotation
	}

	return o
}

// Runtimes is what the manager's cache knows of the objects that stand for runtimes. It answers from memory through
// indexes, and with an error that wraps [core.ErrNotReady] until the cache is synced and after it stopped.
//
// The cache holds only the metadata of the objects, by a watch of its own. A controller of the same kind shares that
// watch when it uses builder.OnlyMetadata. It is safe for concurrent use.
type Runtimes struct {
	reader     client.Reader
	informer   cache.Informer
	kind       schema.GroupVersionKind
	identify   IdentifyFunc
	annotation string
}

// NewRuntimes adds kind to the objects of a cache, usually that of a manager which has not started. It asks the API
// server for the kind, and fails when it does not serve it. A cache can take a kind once: share the result.
func NewRuntimes(
	ctx context.Context, objects cache.Cache, kind schema.GroupVersionKind, identify IdentifyFunc, opts RuntimesOptions,
) (*Runtimes, error) {
	if objects == nil || kind.Kind == "" || kind.Version == "" || identify == nil {
		return nil, fmt.Errorf("runtimes of kind %q: %w", kind, errIncomplete)
	}

	opts = opts.withDefaults()
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)

	informer, err := objects.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch the runtimes of kind %q: %w", kind, err)
	}

	for name, extract := range indexes(identify, opts.DomainAnnotation) {
		if err := objects.IndexField(ctx, object, name, extract); err != nil {
			return nil, fmt.Errorf("index the runtimes of kind %q: %w", kind, err)
		}
	}

	return &Runtimes{
		reader: objects, informer: informer, kind: kind, identify: identify, annotation: opts.DomainAnnotation,
	}, nil
}

func indexes(identify IdentifyFunc, annotation string) map[string]client.IndexerFunc {
	return map[string]client.IndexerFunc{
		indexRuntime: func(object client.Object) []string { return notEmpty(string(identify(object))) },
		// Not the cache's own key: asking that for a namespace which the cache does not hold is an error without a name.
		indexOwner:  func(object client.Object) []string { return []string{client.ObjectKeyFromObject(object).String()} },
		indexDomain: func(object client.Object) []string { return notEmpty(canonical(object.GetAnnotations()[annotation])) },
	}
}

func notEmpty(value string) []string {
	if value == "" {
		return nil
	}

	return []string{value}
}

// canonical is equal for domains that are equal to DNS (RFC 4343, section 3; RFC 1034, section 3.1), and for spellings of one IP address
// (RFC 4291, section 2.2): what equals the same SAN.
func canonical(domain string) string {
	if addr, err := netip.ParseAddr(domain); err == nil {
		return addr.Unmap().String()
	}

	return strings.ToLower(strings.TrimSuffix(domain, "."))
}

// Objects returns the names of the objects that stand for a runtime, in no order; none is no error.
func (r *Runtimes) Objects(ctx context.Context, runtime core.RuntimeID) ([]types.NamespacedName, error) {
	objects, err := r.find(ctx, indexRuntime, string(runtime))
	if err != nil {
		return nil, err
	}

	names := make([]types.NamespacedName, len(objects))
	for i := range objects {
		names[i] = client.ObjectKeyFromObject(&objects[i])
	}

	return names, nil
}

// find returns the objects behind a value of an index. They belong to the cache, and must not be changed.
func (r *Runtimes) find(ctx context.Context, index, value string) ([]metav1.PartialObjectMetadata, error) {
	// The reader would wait for the first sync, with the sender's request on its back.
	if !r.informer.HasSynced() || r.informer.IsStopped() {
		return nil, fmt.Errorf("%w: the cache of %s is not synced", core.ErrNotReady, r.kind.Kind)
	}

	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(r.kind.GroupVersion().WithKind(r.kind.Kind + "List"))

	if err := r.reader.List(ctx, list, client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("%w: read the cache of %s: %w", core.ErrNotReady, r.kind.Kind, err)
	}

	return list.Items, nil
}
