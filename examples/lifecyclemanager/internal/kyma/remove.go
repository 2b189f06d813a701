package kyma

import (
	"context"
	"errors"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// remove removes first the modules from the runtime, then the Kyma and the catalog there, and at
// last the finalizer. The removal of the agent has a finalizer of its own, see package runtimes.
func (r *Reconciler) remove(ctx context.Context, kyma *v1beta2.Kyma) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(kyma, Finalizer) {
		return ctrl.Result{}, nil
	}
	ending, err := r.deleteManifests(ctx, kyma, func(*v1beta2.Manifest) bool { return true })
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(ending) > 0 {
		status := statusOf(kyma, ending)
		status.Message = "waiting for the end of the modules"
		return ctrl.Result{RequeueAfter: skr.Backoff(*kyma.DeletionTimestamp)}, r.report(ctx, kyma, status)
	}
	clean, err := r.clean(ctx, kyma)
	// A runtime that is gone itself, or does not answer for too long, counts as clean.
	if errors.Is(err, runtimes.ErrGone) || skr.GaveUp(kyma, r.GiveUp, err) {
		clean, err = true, nil
	}
	if err != nil || !clean {
		return ctrl.Result{RequeueAfter: skr.Backoff(*kyma.DeletionTimestamp)}, err
	}
	return ctrl.Result{}, skr.Release(ctx, r.Client, kyma, Finalizer)
}

// clean reports whether the runtime has nothing of the operator.
func (r *Reconciler) clean(ctx context.Context, kyma *v1beta2.Kyma) (bool, error) {
	there, err := r.connect(ctx, kyma)
	if err != nil {
		return false, err
	}
	return there.Clean(ctx)
}
