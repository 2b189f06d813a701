package controllerruntime

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Why a delivery was not enqueued, as metric labels, where the error of the map function names no reason itself.
const (
	// ReasonMapFailed means that the map function returned an error.
	ReasonMapFailed = "map_failed"
	// ReasonMapPanicked means that the map function panicked.
	ReasonMapPanicked = "map_panicked"
)

var (
	// errNoOwner means that an event does not say what EnqueueOwner needs.
	errNoOwner = errors.New("event names no owner, as EnqueueOwner expects: " +
		"send contract v1, or map with EnqueueByRuntime or EnqueueOwnerOr")
	errPanicked = errors.New("it panicked, see the log")
)

// MapFunc makes the requests of a controller from a delivery.
//
// No request and no error acknowledges the event: the controller has no use for it. An error keeps the event with its
// sender, who tries again. So a map function that can not answer yet, because its cache is cold, returns an error that
// wraps [core.ErrNotReady]; an empty answer would lose the event. It is called concurrently, while the sender
// waits: it should answer from memory. A panic counts as an error.
type MapFunc[request comparable] func(ctx context.Context, d core.Delivery) ([]request, error)

// EnqueueOwner asks to reconcile the owner that the event names. It suits contract v1; an event without owner is an
// error.
//
// The owner is what the sender says: without a verifier that compares it with the certificate, as SAN pinning does, one
// runtime can trigger another.
func EnqueueOwner(_ context.Context, d core.Delivery) ([]reconcile.Request, error) {
	if d.Event.Owner.Name == "" {
		return nil, errNoOwner
	}

	return []reconcile.Request{{NamespacedName: d.Event.Owner}}, nil
}

// EnqueueOwnerOr asks to reconcile the owner of an event that names one, and leaves the others to next. It suits an
// operator whose runtimes do not all send the same contract. It needs the verifier that [EnqueueOwner] needs.
func EnqueueOwnerOr(next MapFunc[reconcile.Request]) MapFunc[reconcile.Request] {
	return func(ctx context.Context, d core.Delivery) ([]reconcile.Request, error) {
		if d.Event.Owner.Name != "" {
			return EnqueueOwner(ctx, d)
		}

		return next(ctx, d)
	}
}

// EnqueueByRuntime asks to reconcile the object that stands for the runtime which sent the event, whatever the event
// says. It suits every contract.
//
// Where several objects stand for one runtime, each is reconciled. Where there is none, the event is acknowledged
// without a request: a controller that watches the kind looks at the object as soon as there is one.
func EnqueueByRuntime(runtimes *Runtimes) MapFunc[reconcile.Request] {
	return func(ctx context.Context, d core.Delivery) ([]reconcile.Request, error) {
		names, err := runtimes.Objects(ctx, d.Runtime)
		if err != nil {
			return nil, fmt.Errorf("look for the object of runtime %q: %w", d.Runtime, err)
		}

		requests := make([]reconcile.Request, len(names))
		for i, name := range names {
			requests[i] = reconcile.Request{NamespacedName: name}
		}

		return requests, nil
	}
}

// mapError is a failure of a map function that names no reason itself.
type mapError struct {
	reason string
	cause  error
}

func classify(err error) error {
	var named core.Reasoner
	if errors.As(err, &named) {
		return err
	}

	return &mapError{ReasonMapFailed, err}
}

func (e *mapError) Error() string  { return "map function failed: " + e.cause.Error() }
func (e *mapError) Unwrap() error  { return e.cause }
func (e *mapError) Reason() string { return e.reason }
