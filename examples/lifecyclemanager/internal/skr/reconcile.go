package skr

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
)

const (
	// VisitTime bounds the work for one runtime, so that a slow runtime does not occupy a worker.
	VisitTime = 30 * time.Second
	// cacheLag is the time after which a cache shows the write that came first.
	cacheLag = 100 * time.Millisecond
)

// Clusters gives a controller access to the control plane and to the runtimes.
type Clusters struct {
	// Client is the client of the control plane with a cache. Direct reads without a cache.
	Client client.Client
	Direct client.Reader
	// Connect returns the runtime of a Kyma.
	Connect Connect
	// RequeueAfter returns the time until the next reconcile of a runtime in which all is well.
	RequeueAfter func(core.RuntimeID) time.Duration
	// GiveUp is how long after its deletion an object is held by a runtime that does not answer.
	// Default: 1 h.
	GiveUp time.Duration
}

// ErrEnded means that the object of a reconcile is gone. The reconcile ends.
var ErrEnded = errors.New("the object of the reconcile is gone")

// step is a step of a reconcile of an object.
type step[T client.Object] func(ctx context.Context, object T) (ctrl.Result, error)

// Reconcile calls keep, or remove for an object that is deleted, with a limit of 30 s. After an
// error, it calls report. After a write by another program, and after [Unfinished], it is called
// again.
func Reconcile[T client.Object](
	ctx context.Context, object T, keep, remove step[T], report func(state v1beta2.State, problem error) error,
) (ctrl.Result, error) {
	do := keep
	state := v1beta2.Error // The state after an error.
	if object.GetDeletionTimestamp() != nil {
		do = remove
		state = v1beta2.Deleting
	}

	bounded, cancel := context.WithTimeout(ctx, VisitTime)
	defer cancel()

	result, err := do(bounded, object)
	var unfinished Unfinished
	switch {
	case errors.Is(err, ErrEnded):
		return ctrl.Result{}, nil
	case errors.As(err, &unfinished):
		return ctrl.Result{RequeueAfter: cacheLag}, report(v1beta2.Processing, err)
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		return ctrl.Result{RequeueAfter: cacheLag}, nil
	case err != nil:
		return ctrl.Result{}, shortError{errors.Join(err, report(state, err))}
	default:
		return result, nil
	}
}

// Backoff returns the wait for objects that are not ready, or not gone. It is half of the time that
// has passed since the given time, at least 200 ms and at most 1 min. An event starts a reconcile
// earlier than that.
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
	return Ended(c.Patch(ctx, object, After(before)))
}

// Ended returns [ErrEnded] if the object of a reconcile is gone.
func Ended(err error) error {
	if apierrors.IsNotFound(err) {
		return ErrEnded
	}
	return err
}

// Release removes a finalizer from an object of the control plane.
func Release(ctx context.Context, c client.Client, object client.Object, finalizer string) error {
	before, _ := object.DeepCopyObject().(client.Object)
	controllerutil.RemoveFinalizer(object, finalizer)
	return client.IgnoreNotFound(c.Patch(ctx, object, After(before)))
}
