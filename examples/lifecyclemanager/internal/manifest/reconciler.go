package manifest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

const (
	// Finalizer holds a Manifest until its objects are removed from the runtime.
	Finalizer = "operator.kyma-project.io/manifest"
	// retry is the time between two reconciles of objects that are not ready, or not gone.
	retry = time.Second
	// cacheLag is the time after which a cache shows the write that came first.
	cacheLag = 100 * time.Millisecond
	// skippedPoll is the time until the label of a Kyma that opts out is read again.
	skippedPoll = time.Minute
	// limit bounds the work for one runtime, so that a slow one does not keep a worker.
	limit = 30 * time.Second
)

// Reconciler makes the runtimes have the objects of the Manifests.
type Reconciler struct {
	// Client is that of the control plane, with a cache, and Direct reads without it.
	Client client.Client
	Direct client.Reader
	// Connect returns the runtime of the Kyma with that name. See [skr.Connections.Get].
	Connect func(ctx context.Context, kyma client.ObjectKey) (*skr.Runtime, error)
	// RequeueAfter returns the time until the next reconcile of a runtime in which all is well.
	RequeueAfter func(core.RuntimeID) time.Duration
	// GiveUp is how long after its deletion a Manifest is held by a runtime that does not answer.
	// Default: 1 h.
	GiveUp time.Duration
}

func (r *Reconciler) giveUp() time.Duration { return cmp.Or(r.GiveUp, time.Hour) }

// Reconcile applies the objects of one Manifest, or removes them.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	manifest := &v1beta2.Manifest{}
	if err := r.Client.Get(ctx, request.NamespacedName, manifest); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if skipped, err := r.skipped(ctx, manifest); err != nil || skipped {
		return ctrl.Result{RequeueAfter: skippedPoll}, err
	}
	step, state := r.install, v1beta2.Error
	if !manifest.DeletionTimestamp.IsZero() {
		step, state = r.remove, v1beta2.Deleting
	}
	result, err := bounded(ctx, manifest, step)
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: cacheLag}, nil
	}
	if err == nil {
		return result, nil
	}
	status := manifest.Status
	status.State, status.Message = state, err.Error()
	return ctrl.Result{}, errors.Join(err, r.report(ctx, manifest, status))
}

// skipped reports whether the Kyma opts out.
func (r *Reconciler) skipped(ctx context.Context, manifest *v1beta2.Manifest) (bool, error) {
	kyma := &v1beta2.Kyma{}
	err := r.Client.Get(ctx, kymaOf(manifest), kyma)
	return v1beta2.Skipped(kyma), client.IgnoreNotFound(err)
}

// bounded leaves time to report an error after the limit.
func bounded(
	ctx context.Context, manifest *v1beta2.Manifest, step func(context.Context, *v1beta2.Manifest) (ctrl.Result, error),
) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return step(ctx, manifest)
}

// kymaOf returns the name of the Kyma that represents the runtime of a Manifest.
func kymaOf(manifest *v1beta2.Manifest) client.ObjectKey {
	return client.ObjectKey{Namespace: manifest.Namespace, Name: manifest.Labels[v1beta2.KymaLabel]}
}

// install applies the objects, deletes those of a former version, and reports whether all is ready.
func (r *Reconciler) install(ctx context.Context, manifest *v1beta2.Manifest) (ctrl.Result, error) {
	if err := r.hold(ctx, manifest); err != nil {
		return ctrl.Result{}, err
	}
	there, err := r.Connect(ctx, kymaOf(manifest))
	if err != nil {
		return ctrl.Result{}, err
	}
	awaited, err := r.apply(ctx, there, manifest)
	if err != nil || awaited != "" {
		return ctrl.Result{RequeueAfter: retry}, err
	}
	return ctrl.Result{RequeueAfter: r.RequeueAfter(core.RuntimeID(kymaOf(manifest).Name))}, nil
}

// hold adds the finalizer.
func (r *Reconciler) hold(ctx context.Context, manifest *v1beta2.Manifest) error {
	before := manifest.DeepCopy()
	if !controllerutil.AddFinalizer(manifest, Finalizer) {
		return nil
	}
	return r.Client.Patch(ctx, manifest, after(before))
}

// release removes the finalizer.
func (r *Reconciler) release(ctx context.Context, manifest *v1beta2.Manifest) error {
	before := manifest.DeepCopy()
	controllerutil.RemoveFinalizer(manifest, Finalizer)
	return client.IgnoreNotFound(r.Client.Patch(ctx, manifest, after(before)))
}

// report writes the status if it has changed.
func (r *Reconciler) report(ctx context.Context, manifest *v1beta2.Manifest, status v1beta2.ManifestStatus) error {
	if equality.Semantic.DeepEqual(manifest.Status, status) {
		return nil
	}
	before := manifest.DeepCopy()
	manifest.Status = status
	patch := client.MergeFrom(before)
	if !slices.Equal(before.Status.Inventory, status.Inventory) {
		patch = after(before)
	}
	return client.IgnoreNotFound(r.Client.Status().Patch(ctx, manifest, patch))
}

// after is a patch that conflicts unless it changes that version of the object. So a cache that
// lags behind loses neither a finalizer nor an entry of the inventory.
func after(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}
