// Package controllerruntimetest provides a cache in memory, so that unit tests of an operator need
// no API server.
package controllerruntimetest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Cache is a [cache.Cache] of one kind. Use it for NewRuntimes of package controllerruntime and for
// the option NewCache of a controller manager. It returns typed objects to a caller that requests
// their type, and otherwise their metadata. It is in sync even before a manager starts it. It is
// safe for concurrent use.
type Cache struct{ *memory }

// memory is the content of a Cache and its informer. mu guards handlers, unsynced and kind.
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

// NewCache returns a cache of objects of one kind.
func NewCache(objects ...client.Object) *Cache {
	c := &Cache{&memory{objects: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{})}}
	c.Set(objects...)
	return c
}

// Set creates or replaces objects. Controllers that watch them get an event.
func (c *Cache) Set(objects ...client.Object) {
	for _, object := range objects {
		c.setObject(copyOf(object))
	}
}

// copyOf returns a copy, which keeps its kind.
func copyOf(object client.Object) client.Object {
	copied, _ := object.DeepCopyObject().(client.Object) // It has the type of the object.
	return copied
}

func (c *memory) setObject(object client.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.kind.Empty() {
		c.kind = object.GetObjectKind().GroupVersionKind()
	}

	old, known, _ := c.objects.Get(object) // The store fails for nothing that has metadata.
	_ = c.objects.Update(object)
	for _, handler := range c.handlers {
		if known {
			handler.OnUpdate(handler.viewObject(old), handler.viewObject(object))
		} else {
			handler.OnAdd(handler.viewObject(object), false)
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
		handler.OnDelete(handler.viewObject(object))
	}
}

// SetSynced changes whether the cache is in sync. The cache of an operator that has just started is
// not.
func (c *Cache) SetSynced(synced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsynced = !synced
}

// metadataOf returns the metadata of a stored object, with its kind.
func metadataOf(object client.Object) *metav1.PartialObjectMetadata {
	if metadata, ok := object.(*metav1.PartialObjectMetadata); ok {
		return metadata
	}
	metadata := meta.AsPartialObjectMetadata(object)
	metadata.SetGroupVersionKind(object.GetObjectKind().GroupVersionKind())
	return metadata
}

// isMetadata reports whether a caller that passes this object or list asks for metadata.
func isMetadata(object any) bool {
	switch object.(type) {
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		return true
	default:
		return false
	}
}

// viewOf returns a stored object as a caller asks for it.
func viewOf(stored any, onlyMetadata bool) client.Object {
	object, _ := stored.(client.Object)
	if onlyMetadata {
		return metadataOf(object)
	}
	return object
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

// GetInformer implements [cache.Cache]. Like an API server, it fails for a kind other than the kind
// of the objects, if the objects name a kind.
func (c *memory) GetInformer(
	_ context.Context, object client.Object, _ ...cache.InformerGetOption,
) (cache.Informer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if kind := object.GetObjectKind().GroupVersionKind(); !c.kind.Empty() && !kind.Empty() && kind != c.kind {
		return nil, &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
	}
	return &informer{c, isMetadata(object)}, nil
}

// Get implements [cache.Cache] for metadata and for the type of the objects.
func (c *memory) Get(_ context.Context, name types.NamespacedName, object client.Object, _ ...client.GetOption) error {
	found, known, _ := c.objects.GetByKey(key(name))
	if !known {
		kind := object.GetObjectKind().GroupVersionKind()
		return apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name.Name)
	}

	from := reflect.ValueOf(copyOf(viewOf(found, isMetadata(object))))
	into := reflect.ValueOf(object)
	if from.Type() != into.Type() {
		return fmt.Errorf("controllerruntimetest: get of %T, want metadata or %s", object, from.Type())
	}

	into.Elem().Set(from.Elem())
	return nil
}

// IndexField implements [cache.Cache].
func (c *memory) IndexField(
	_ context.Context, object client.Object, name string, extract client.IndexerFunc,
) error {
	onlyMetadata := isMetadata(object)
	return c.objects.AddIndexers(toolscache.Indexers{name: func(stored any) ([]string, error) {
		return extract(viewOf(stored, onlyMetadata)), nil
	}})
}

// List implements [cache.Cache] for lists of metadata and of the type of the objects, by one field
// or all.
func (c *memory) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	options := client.ListOptions{}
	options.ApplyOptions(opts)
	found := c.objects.List()
	var err error
	if options.FieldSelector != nil && !options.FieldSelector.Empty() {
		by := options.FieldSelector.Requirements()[0]
		found, err = c.objects.ByIndex(by.Field, by.Value)
	}

	if err != nil {
		return err
	}

	items := []runtime.Object{}
	for _, stored := range found {
		object := viewOf(stored, isMetadata(list))
		if options.Namespace == "" || options.Namespace == object.GetNamespace() {
			items = append(items, copyOf(object))
		}
	}

	if err := meta.SetList(list, items); err != nil {
		return fmt.Errorf("controllerruntimetest: list of %T, want a list of metadata or of the objects: %w", list, err)
	}
	return nil
}

func (c *memory) IsStopped() bool { return false }

// informer is the informer of the metadata, or of the typed objects.
type informer struct {
	*memory

	onlyMetadata bool
}

// AddEventHandler calls the handler for each object that exists.
func (i *informer) AddEventHandler(
	handler toolscache.ResourceEventHandler,
) (toolscache.ResourceEventHandlerRegistration, error) {
	i.mu.Lock()
	defer i.mu.Unlock()

	added := &registration{handler, syncedForEver(), i}
	for _, object := range i.objects.List() {
		handler.OnAdd(added.viewObject(object), true)
	}

	i.handlers = append(i.handlers, added)
	return added, nil
}

// AddEventHandlerWithResyncPeriod is AddEventHandler: nothing is missed that a resync would bring.
func (i *informer) AddEventHandlerWithResyncPeriod(
	handler toolscache.ResourceEventHandler, _ time.Duration,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// AddEventHandlerWithOptions is AddEventHandler.
func (i *informer) AddEventHandlerWithOptions(
	handler toolscache.ResourceEventHandler, _ toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// RemoveEventHandler implements [cache.Informer].
func (i *informer) RemoveEventHandler(added toolscache.ResourceEventHandlerRegistration) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers = slices.DeleteFunc(i.handlers, func(r *registration) bool { return r == added })
	return nil
}

// registration is in sync with the cache, because handlers are called in the goroutine of the
// change.
type registration struct {
	toolscache.ResourceEventHandler
	// Controller provides the methods of a registration, including methods that newer versions of
	// client-go add.
	toolscache.Controller

	of *informer
}

// HasSynced implements [toolscache.ResourceEventHandlerRegistration].
func (r *registration) HasSynced() bool { return r.of.HasSynced() }

// viewObject returns a stored object as the informer shows it.
func (r *registration) viewObject(stored any) client.Object { return viewOf(stored, r.of.onlyMetadata) }

// syncedForEver returns a controller that does not run, with a queue that is in sync. client-go
// 0.36 asks a registration for HasSyncedChecker, which returns a type that client-go 0.35 lacks.
func syncedForEver() toolscache.Controller {
	queue := toolscache.NewDeltaFIFOWithOptions(toolscache.DeltaFIFOOptions{})
	_ = queue.Replace(nil, "") // It fails only for objects without a key.
	return toolscache.New(&toolscache.Config{Queue: queue})
}
