package controllerruntime_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
)

func kymaKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// fakeCache is a cache of one kind that can fail. It is its own informer, which has no indexer, as
// that of a cache of several namespaces. Methods of the informer that are not needed panic.
type fakeCache struct {
	*controllerruntimetest.Cache
	cache.Informer

	store         toolscache.Indexer // of the informer of one namespace
	cold, stopped atomic.Bool
	broken        error // of List
	unknown       error // of GetInformer
	namespaces    bool  // several of them
}

// indexedInformer is the informer of a cache of one namespace, or of all.
type indexedInformer struct{ *fakeCache }

func (i indexedInformer) GetIndexer() toolscache.Indexer { return i.store }

func (i indexedInformer) AddIndexers(indexers toolscache.Indexers) error {
	return i.store.AddIndexers(indexers)
}

var errFake = errors.New("fake failure")

func newFakeCache(t testing.TB, objects ...*metav1.PartialObjectMetadata) *fakeCache {
	t.Helper()
	fake := &fakeCache{
		Cache: controllerruntimetest.NewCache(), store: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{}),
	}
	for _, object := range objects {
		fake.Set(object)
		check(t, fake.store.Add(object))
	}
	return fake
}

func (f *fakeCache) HasSynced() bool { return !f.cold.Load() }
func (f *fakeCache) IsStopped() bool { return f.stopped.Load() }

func (f *fakeCache) GetInformer(
	_ context.Context, object client.Object, opts ...cache.InformerGetOption,
) (cache.Informer, error) {
	options := cache.InformerGetOptions{}
	for _, set := range opts {
		set(&options)
	}
	if options.BlockUntilSynced == nil || *options.BlockUntilSynced {
		return nil, fmt.Errorf("%w: waits for the cache", errFake)
	}
	if _, ok := object.(*metav1.PartialObjectMetadata); !ok {
		return nil, fmt.Errorf("%w: %T holds more than metadata", errFake, object)
	}
	if f.namespaces {
		return f, f.unknown
	}
	return indexedInformer{f}, f.unknown
}

func (f *fakeCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if f.cold.Load() {
		return fmt.Errorf("%w: a real cache would wait now", errFake)
	}
	if f.broken != nil {
		return f.broken
	}
	return f.Cache.List(ctx, list, opts...)
}

// kyma returns an object with a name, and with annotations and labels as "key=value".
func kyma(name string, annotations, labels map[string]string) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kymaKind())
	object.Namespace, object.Name = "kcp-system", name
	object.Annotations, object.Labels = annotations, labels
	return object
}

func domain(value string) map[string]string {
	return map[string]string{controllerruntime.DomainAnnotation: value}
}

func newRuntimes(t testing.TB, fake *fakeCache, identify func(metav1.Object) core.RuntimeID) *controllerruntime.Runtimes {
	t.Helper()
	runtimes, err := controllerruntime.NewRuntimes(t.Context(), fake, kymaKind(), identify,
		controllerruntime.RuntimesOptions{})
	check(t, err)
	return runtimes
}
