package controllerruntime

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// The reasons of [Source.Handle], if the error of the map function has none itself.
const (
	// ReasonMapFailed means that the map function returned an error.
	ReasonMapFailed core.Reason = "map_failed"
	// ReasonMapPanicked means that the map function panicked.
	ReasonMapPanicked core.Reason = "map_panicked"
)

var (
	// errNoOwner means that the event has no owner, which EnqueueOwner needs.
	errNoOwner = errors.New("event names no owner, as EnqueueOwner expects: " +
		"send contract v1, or map with EnqueueByRuntime, or pass it to EnqueueOwner")
	errMapFailed error = &reasons.Error{Text: "map function failed", Label: string(ReasonMapFailed)}
	// errMapPanicked is for the sender. Only the log has the value of the panic.
	errMapPanicked error = &reasons.Error{
		Text: "map function failed: panic, see the log", Label: string(ReasonMapPanicked),
	}
)

// MapFunc maps a delivery to the requests of a controller.
//
// If the function returns no requests and no error, the controller does not need the event, which
// is then acknowledged. If it returns an error, the sender keeps the event and sends it again. If
// the function cannot answer yet, for example because a cache is not synced, it must return an
// error that wraps [core.ErrNotReady]. An empty result would lose the event.
//
// It is called concurrently while the sender waits, so it should answer from memory. A panic counts
// as an error.
type MapFunc[request comparable] func(ctx context.Context, d core.Delivery) ([]request, error)

// EnqueueOwner requests the owner of an event that names an owner, as with contract v1, and calls
// otherwise for all other events. If otherwise is nil, an event without an owner is an error.
//
// The sender states the owner. Without a verifier that compares it with the certificate, such as
// SAN pinning, one runtime can send events for another runtime.
func EnqueueOwner(otherwise MapFunc[reconcile.Request]) MapFunc[reconcile.Request] {
	return func(ctx context.Context, d core.Delivery) ([]reconcile.Request, error) {
		switch {
		case d.Event.Owner.Name != "":
			return []reconcile.Request{{NamespacedName: d.Event.Owner}}, nil
		case otherwise == nil:
			return nil, errNoOwner
		default:
			return otherwise(ctx, d)
		}
	}
}

// EnqueueByRuntime requests the object that represents the runtime that sent the event. It works
// with every contract.
//
// If several objects represent one runtime, each object is requested. If no object does, the event
// is acknowledged without a request, because a controller that watches the kind reconciles a new
// object anyway. If runtimes is nil, EnqueueByRuntime returns nil, which [SourceFor] refuses.
func EnqueueByRuntime(runtimes *Runtimes) MapFunc[reconcile.Request] {
	if runtimes == nil {
		return nil
	}
	return func(ctx context.Context, d core.Delivery) ([]reconcile.Request, error) {
		names, err := runtimes.Objects(ctx, d.Runtime)
		if err != nil {
			return nil, fmt.Errorf("find the object of runtime %q: %w", d.Runtime, err)
		}

		requests := make([]reconcile.Request, len(names))
		for i, name := range names {
			requests[i] = reconcile.Request{NamespacedName: name}
		}
		return requests, nil
	}
}

// EnqueueFor requests objects other than the objects that represent runtimes, such as the modules
// of a cluster. mapFunc gets each object that represents the runtime that sent the event and
// returns the requests. It is a map function as for Watches of a controller.
//
// The object is typed if the object passed to [NewRuntimes] is typed, and otherwise has only
// metadata. It must not be changed. mapFunc is called concurrently, while the sender waits. It
// should read from a cache. It cannot report an error: an event without requests is acknowledged.
// If runtimes or mapFunc is nil, EnqueueFor returns nil, which [SourceFor] refuses.
func EnqueueFor(runtimes *Runtimes, mapFunc handler.MapFunc) MapFunc[reconcile.Request] {
	if runtimes == nil || mapFunc == nil {
		return nil
	}
	return func(ctx context.Context, d core.Delivery) ([]reconcile.Request, error) {
		objects, err := runtimes.findObjects(indexRuntime, string(d.Runtime))
		if err != nil {
			return nil, fmt.Errorf("find the object of runtime %q: %w", d.Runtime, err)
		}

		var requests []reconcile.Request
		for _, object := range objects {
			requests = append(requests, mapFunc(ctx, object)...)
		}
		return requests, nil
	}
}

// classify puts the cause first, so that it decides whether the error is permanent.
func classify(err error) error {
	var named interface{ Reason() string }
	if errors.As(err, &named) {
		return err
	}
	return fmt.Errorf("%[2]w: %[1]w", err, errMapFailed)
}
