package controllerruntimetest

import (
	"slices"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

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
