// Package controllerruntimetest has a cache in memory, so that unit tests of an operator need no
// API server.
package controllerruntimetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Cache is a [cache.Cache] of the metadata of one kind. It is for NewRuntimes of package
// controllerruntime, and for the option NewCache of a controller manager. It is in sync also before
// a manager starts it. It is safe for concurrent use.
type Cache struct{ *memory }

type memory struct {
	cache.Cache    // nil: a method that is missing here panics
	cache.Informer // nil, too

	objects  toolscache.Indexer
	mu       sync.Mutex
	handlers []*registration
	unsynced bool
	kind     schema.GroupVersionKind // of the first object that names one
}

var _ cache.Cache = (*Cache)(nil)

// NewCache returns a cache of the metadata of objects, which may be typed.
func NewCache(objects ...client.Object) *Cache {
	c := &Cache{&memory{objects: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{})}}
	c.Set(objects...)
	return c
}

// Set creates or replaces objects. Controllers that watch them get an event.
func (c *Cache) Set(objects ...client.Object) {
	for _, object := range objects {
		stored := meta.AsPartialObjectMetadata(object).DeepCopy()
		stored.SetGroupVersionKind(object.GetObjectKind().GroupVersionKind())
		c.set(stored)
	}
}

func (c *memory) set(object *metav1.PartialObjectMetadata) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kind.Empty() {
		c.kind = object.GroupVersionKind()
	}
	old, known, _ := c.objects.Get(object) // The store fails for nothing that has metadata.
	_ = c.objects.Update(object)
	for _, handler := range c.handlers {
		if known {
			handler.OnUpdate(old, object)
		} else {
			handler.OnAdd(object, false)
		}
	}
}

// Delete removes an object.
func (c *Cache) Delete(name types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	object, known, _ := c.objects.GetByKey(key(name))
	if !known {
		return
	}
	_ = c.objects.Delete(object)
	for _, handler := range c.handlers {
		handler.OnDelete(object)
	}
}

// SetSynced changes whether the cache is in sync, as that of an operator that has just started.
func (c *Cache) SetSynced(synced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsynced = !synced
}

func metadata(object any) *metav1.PartialObjectMetadata {
	stored, _ := object.(*metav1.PartialObjectMetadata)
	return stored
}

func key(name types.NamespacedName) string {
	return toolscache.NewObjectName(name.Namespace, name.Name).String()
}

// Start implements [cache.Cache]: it waits for the end of ctx.
func (c *memory) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// WaitForCacheSync implements [cache.Cache]. It does not wait.
func (c *memory) WaitForCacheSync(context.Context) bool { return c.HasSynced() }

// HasSynced implements [cache.Informer].
func (c *memory) HasSynced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.unsynced
}

// GetInformer implements [cache.Cache]. Like an API server, it fails for another kind than that of
// the objects, if they name one.
func (c *memory) GetInformer(
	_ context.Context, object client.Object, _ ...cache.InformerGetOption,
) (cache.Informer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kind := object.GetObjectKind().GroupVersionKind(); !c.kind.Empty() && !kind.Empty() && kind != c.kind {
		return nil, &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
	}
	return c, nil
}

// Get implements [cache.Cache] for metadata.
func (c *memory) Get(_ context.Context, name types.NamespacedName, object client.Object, _ ...client.GetOption) error {
	into, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("controllerruntimetest: get of %T, want metadata", object)
	}
	found, known, _ := c.objects.GetByKey(key(name))
	if !known {
		of := schema.GroupResource{Group: into.GroupVersionKind().Group, Resource: into.Kind}
		return apierrors.NewNotFound(of, name.Name)
	}
	metadata(found).DeepCopyInto(into)
	return nil
}

// IndexField implements [cache.Cache].
func (c *memory) IndexField(_ context.Context, _ client.Object, name string, extract client.IndexerFunc) error {
	return c.objects.AddIndexers(toolscache.Indexers{name: func(object any) ([]string, error) {
		return extract(metadata(object)), nil
	}})
}

// List implements [cache.Cache] for lists of metadata, by one field or all.
func (c *memory) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	into, ok := list.(*metav1.PartialObjectMetadataList)
	if !ok {
		return fmt.Errorf("controllerruntimetest: list of %T, want metadata", list)
	}
	options := client.ListOptions{}
	options.ApplyOptions(opts)
	found, err := c.objects.List(), error(nil)
	if options.FieldSelector != nil && !options.FieldSelector.Empty() {
		by := options.FieldSelector.Requirements()[0]
		found, err = c.objects.ByIndex(by.Field, by.Value)
	}
	for _, object := range found {
		if stored := metadata(object); options.Namespace == "" || options.Namespace == stored.Namespace {
			into.Items = append(into.Items, *stored.DeepCopy())
		}
	}
	return err
}

func (c *memory) IsStopped() bool { return false }

// AddEventHandler calls the handler for each object that is there.
func (c *memory) AddEventHandler(
	handler toolscache.ResourceEventHandler,
) (toolscache.ResourceEventHandlerRegistration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, object := range c.objects.List() {
		handler.OnAdd(object, true)
	}
	added := &registration{handler, c}
	c.handlers = append(c.handlers, added)
	return added, nil
}

func (c *memory) AddEventHandlerWithResyncPeriod(
	handler toolscache.ResourceEventHandler, _ time.Duration,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return c.AddEventHandler(handler)
}

func (c *memory) AddEventHandlerWithOptions(
	handler toolscache.ResourceEventHandler, _ toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return c.AddEventHandler(handler)
}

func (c *memory) RemoveEventHandler(added toolscache.ResourceEventHandlerRegistration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers = slices.DeleteFunc(c.handlers, func(r *registration) bool { return r == added })
	return nil
}

// registration is in sync with the cache, because handlers are called in the goroutine of the
// change.
type registration struct {
	toolscache.ResourceEventHandler
	*memory
}

func (r *registration) HasSyncedChecker() toolscache.DoneChecker { return r }
func (r *registration) Name() string                             { return "memory" }

func (r *registration) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}
