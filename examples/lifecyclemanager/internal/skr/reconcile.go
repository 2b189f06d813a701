package skr

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// limit bounds the work for one runtime, so that a slow one does not keep a worker.
const limit = 30 * time.Second

// Bounded calls a step of a reconcile with a limit of 30 s, which leaves time to report an error.
func Bounded[T client.Object](
	ctx context.Context, object T, step func(context.Context, T) (ctrl.Result, error),
) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return step(ctx, object)
}

// Backoff returns the wait for objects that are not ready, or not gone. It is half of the time that
// has passed since then, at least 200 ms and at most 1 min. An event comes before it.
func Backoff(since metav1.Time) time.Duration {
	const least, most = 200 * time.Millisecond, time.Minute
	return max(least, min(time.Since(since.Time)/2, most))
}

// After is a patch that conflicts unless it changes that version of the object. Therefore a stale
// cache loses neither a finalizer nor an entry of an inventory.
func After(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// Hold adds a finalizer to an object of the control plane.
func Hold(ctx context.Context, c client.Client, object client.Object, finalizer string) error {
	before, _ := object.DeepCopyObject().(client.Object)
	if !controllerutil.AddFinalizer(object, finalizer) {
		return nil
	}
	return c.Patch(ctx, object, After(before))
}

// Release removes a finalizer from an object of the control plane.
func Release(ctx context.Context, c client.Client, object client.Object, finalizer string) error {
	before, _ := object.DeepCopyObject().(client.Object)
	controllerutil.RemoveFinalizer(object, finalizer)
	return client.IgnoreNotFound(c.Patch(ctx, object, After(before)))
}
