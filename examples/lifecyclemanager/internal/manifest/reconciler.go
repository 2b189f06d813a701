// Package manifest keeps the objects of modules in the runtimes.
package manifest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// asidePoll is the time until a Manifest that is set aside is read again.
const asidePoll = time.Minute

// Reconciler makes the runtimes have the objects of the Manifests.
type Reconciler struct{ skr.Clusters }

// Reconcile applies the objects of one Manifest, or removes them.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	manifest := &v1beta2.Manifest{}
	if err := r.Client.Get(ctx, request.NamespacedName, manifest); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}

	if wait, err := r.setAside(ctx, manifest); err != nil || wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, err
	}

	keep := r.installModule
	if manifest.Spec.DisabledSince != nil {
		keep = r.disableModule
	}

	return skr.Reconcile(ctx, manifest, keep, r.remove, func(state v1beta2.State, problem error) error {
		status := manifest.Status
		status.State = state
		status.Message = problem.Error()
		if err := r.reportStatus(ctx, manifest, status); !errors.Is(err, skr.ErrEnded) {
			return err
		}
		return nil
	})
}

// setAside returns how long a Manifest stays as it is, because its Kyma opts out. It deletes a
// Manifest without a Kyma, as a restored backup may have.
func (r *Reconciler) setAside(ctx context.Context, manifest *v1beta2.Manifest) (time.Duration, error) {
	kyma := &v1beta2.Kyma{}
	err := r.Client.Get(ctx, kymaOf(manifest), kyma)
	if apierrors.IsNotFound(err) {
		err = r.Direct.Get(ctx, kymaOf(manifest), kyma)
	}

	switch {
	case apierrors.IsNotFound(err) && manifest.DeletionTimestamp.IsZero():
		ctrl.LoggerFrom(ctx).Info("deleting a Manifest without a Kyma", "kyma", kymaOf(manifest).Name)
		return asidePoll, client.IgnoreNotFound(r.Client.Delete(ctx, manifest))
	case v1beta2.Skipped(kyma):
		return asidePoll, nil
	default:
		return 0, client.IgnoreNotFound(err)
	}
}

// kymaOf returns the name of the Kyma that represents the runtime of a Manifest.
func kymaOf(manifest *v1beta2.Manifest) client.ObjectKey {
	return client.ObjectKey{Namespace: manifest.Namespace, Name: manifest.Labels[v1beta2.KymaLabel]}
}

// installModule applies the objects, deletes the objects of a former version, and reports whether
// everything is ready.
func (r *Reconciler) installModule(ctx context.Context, manifest *v1beta2.Manifest) (ctrl.Result, error) {
	if err := skr.Hold(ctx, r.Client, manifest, v1beta2.ManifestFinalizer); err != nil {
		return ctrl.Result{}, err
	}

	there, cluster, err := r.connectRuntime(ctx, manifest)
	if err != nil {
		return ctrl.Result{}, err
	}

	if err := r.enterCluster(ctx, manifest, cluster); err != nil {
		return ctrl.Result{}, err
	}

	wanted, err := r.wantedContent(ctx, manifest)
	if err != nil {
		return ctrl.Result{}, err
	}
	if wanted == nil {
		status := manifest.Status
		status.State = v1beta2.Processing
		status.Message = "ModuleTemplate " + manifest.Spec.Template.Name + " has changed or is gone"
		return r.pollLater(manifest), r.reportStatus(ctx, manifest, status)
	}

	if err := there.Check(slices.Concat(wanted.objects, wanted.data)); err != nil {
		return ctrl.Result{}, err
	}

	state, err := r.applyContent(ctx, there, manifest, wanted)
	if err != nil {
		return ctrl.Result{}, err
	}
	if state != v1beta2.Ready {
		ready := meta.FindStatusCondition(manifest.Status.Conditions, v1beta2.ReadyCondition)
		return ctrl.Result{RequeueAfter: skr.Backoff(ready.LastTransitionTime)}, nil
	}

	return r.pollLater(manifest), nil
}

// pollLater is the result of a reconcile after which nothing is awaited.
func (r *Reconciler) pollLater(manifest *v1beta2.Manifest) ctrl.Result {
	return ctrl.Result{RequeueAfter: r.RequeueAfter(core.RuntimeID(kymaOf(manifest).Name))}
}

// reportStatus writes the status if it has changed, with its summary. The error is [skr.ErrEnded]
// if the Manifest is gone: without an inventory, nothing may be applied.
func (r *Reconciler) reportStatus(
	ctx context.Context, manifest *v1beta2.Manifest, status v1beta2.ManifestStatus,
) error {
	status.State = cmp.Or(status.State, v1beta2.Processing)
	status.Message = skr.Short(status.Message)
	status.ObservedGeneration = manifest.Generation
	status.Conditions = v1beta2.SetReady(status.Conditions, status.State, status.Message, manifest.Generation)

	if equality.Semantic.DeepEqual(manifest.Status, status) {
		return nil
	}

	before := manifest.DeepCopy()
	manifest.Status = status

	patch := client.MergeFrom(before)
	if !slices.Equal(before.Status.Inventory, status.Inventory) {
		patch = skr.After(before)
	}

	return skr.Ended(r.Client.Status().Patch(ctx, manifest, patch))
}
