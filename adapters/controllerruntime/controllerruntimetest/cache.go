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

// memory implements [cache.Cache] for a [Cache].
type memory struct {
	cache.Cache // nil: a method that is missing here panics

	objects  toolscache.Indexer
	mu       sync.Mutex
	handlers []toolscache.ResourceEventHandler
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
	old, known, err := c.objects.Get(object)
	if err == nil {
		err = c.objects.Update(object)
	}
	must(err)
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
	object, known, err := c.objects.GetByKey(key(name))
	must(err)
	if !known {
		return
	}
	must(c.objects.Delete(object))
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

// metadata returns an object of the store, which has no others.
func metadata(object any) *metav1.PartialObjectMetadata {
	stored, _ := object.(*metav1.PartialObjectMetadata)
	return stored
}

// must panics on a failure of the store in memory, which has none for objects with a name.
func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("controllerruntimetest: %v", err))
	}
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
func (c *memory) WaitForCacheSync(context.Context) bool { return c.synced() }

func (c *memory) synced() bool {
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
	return &informer{cache: c}, nil
}

// Get implements [cache.Cache] for metadata.
func (c *memory) Get(_ context.Context, name types.NamespacedName, object client.Object, _ ...client.GetOption) error {
	into, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("controllerruntimetest: get of %T, want metadata", object)
	}
	found, known, err := c.objects.GetByKey(key(name))
	if err == nil && !known {
		return apierrors.NewNotFound(schema.GroupResource{
			Group: into.GroupVersionKind().Group, Resource: into.Kind,
		}, name.Name)
	}
	if err == nil {
		metadata(found).DeepCopyInto(into)
	}
	return err
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
		into.Items = append(into.Items, *metadata(object).DeepCopy())
	}
	into.Items = slices.DeleteFunc(into.Items, func(object metav1.PartialObjectMetadata) bool {
		return options.Namespace != "" && options.Namespace != object.Namespace
	})
	return err
}

// informer is the watch of a [Cache].
type informer struct {
	cache.Informer // nil: a method that is missing here panics

	cache *memory
}

func (i *informer) HasSynced() bool { return i.cache.synced() }
func (i *informer) IsStopped() bool { return false }

// AddEventHandler calls the handler for each object that is there.
func (i *informer) AddEventHandler(
	handler toolscache.ResourceEventHandler,
) (toolscache.ResourceEventHandlerRegistration, error) {
	i.cache.mu.Lock()
	defer i.cache.mu.Unlock()
	for _, object := range i.cache.objects.List() {
		handler.OnAdd(object, true)
	}
	i.cache.handlers = append(i.cache.handlers, handler)
	return &registration{informer: i, handler: handler}, nil
}

func (i *informer) AddEventHandlerWithResyncPeriod(
	handler toolscache.ResourceEventHandler, _ time.Duration,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

func (i *informer) AddEventHandlerWithOptions(
	handler toolscache.ResourceEventHandler, _ toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

func (i *informer) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	i.cache.mu.Lock()
	defer i.cache.mu.Unlock()
	i.cache.handlers = slices.DeleteFunc(i.cache.handlers, func(h toolscache.ResourceEventHandler) bool {
		added, ok := handle.(*registration)
		return ok && added.handler == h
	})
	return nil
}

// registration is in sync at once, because its handler is called in the goroutine of the change.
type registration struct {
	*informer

	handler toolscache.ResourceEventHandler
}

func (r *registration) HasSyncedChecker() toolscache.DoneChecker { return r }
func (r *registration) Name() string                             { return "memory" }

func (r *registration) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}
