// Package kyma keeps the catalog, the modules and the status of runtimes.
package kyma

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// Finalizer holds a Kyma until its modules are removed from the runtime.
const Finalizer = "operator.kyma-project.io/kyma"

// Reconciler keeps the modules of runtimes as their users want them.
type Reconciler struct {
	skr.Clusters

	// Events reports edits that are undone.
	Events events.EventRecorder
}

// Reconcile reads the state of one runtime, because an event does not carry a change. A Kyma with
// [v1beta2.SkipLabel] stays as it is.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	kyma := &v1beta2.Kyma{}
	if err := r.Client.Get(ctx, request.NamespacedName, kyma); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if v1beta2.Skipped(kyma) {
		return ctrl.Result{}, nil
	}

	return skr.Reconcile(ctx, kyma, r.keepModules, r.remove, func(state v1beta2.State, problem error) error {
		status := kyma.Status
		status.State = state
		status.Message = problem.Error()
		return r.reportStatus(ctx, kyma, status)
	})
}

// keepModules gives the runtime its catalog, and the control plane the Manifests that the user asks
// for.
func (r *Reconciler) keepModules(ctx context.Context, kyma *v1beta2.Kyma) (ctrl.Result, error) {
	if err := skr.Hold(ctx, r.Client, kyma, Finalizer); err != nil {
		return ctrl.Result{}, err
	}

	there, err := r.connectRuntime(ctx, kyma)
	if err != nil {
		return ctrl.Result{}, err
	}

	if err := r.claimCluster(ctx, there, kyma); err != nil {
		return ctrl.Result{}, err
	}

	templates, err := r.visibleTemplates(ctx, kyma)
	if err != nil {
		return ctrl.Result{}, err
	}

	remote, err := r.syncRuntime(ctx, there, kyma, templates)
	if err != nil {
		return ctrl.Result{}, err
	}

	modules, err := r.syncManifests(ctx, kyma, templates)
	if err != nil {
		return ctrl.Result{}, err
	}

	status := statusOf(kyma, modules)
	if err := errors.Join(r.reportStatus(ctx, kyma, status), reportThere(ctx, there, remote, status)); err != nil {
		return ctrl.Result{}, err
	}

	return ctrl.Result{RequeueAfter: r.RequeueAfter(core.RuntimeID(kyma.Name))}, nil
}

func (r *Reconciler) connectRuntime(ctx context.Context, kyma *v1beta2.Kyma) (*skr.Runtime, error) {
	name := client.ObjectKeyFromObject(kyma)
	return r.Connect(ctx, name, name)
}

// syncRuntime makes the catalog of the runtime equal to templates, and returns the Kyma there.
func (r *Reconciler) syncRuntime(
	ctx context.Context, there *skr.Runtime, kyma *v1beta2.Kyma, templates map[string]*v1beta2.ModuleTemplate,
) (remote *v1beta2.Kyma, err error) {
	if err := there.Prepare(ctx); err != nil {
		return nil, err
	}

	remote, err = r.syncCatalogAndSpec(ctx, there, kyma, templates)

	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		there.PrepareAgain() // A definition or the namespace was deleted in the runtime.
	}
	return remote, err
}

func (r *Reconciler) syncCatalogAndSpec(
	ctx context.Context, there *skr.Runtime, kyma *v1beta2.Kyma, templates map[string]*v1beta2.ModuleTemplate,
) (*v1beta2.Kyma, error) {
	if err := syncCatalog(ctx, there, templates); err != nil {
		return nil, err
	}
	return r.syncSpec(ctx, there, kyma)
}

// remove removes first the modules from the runtime, then the Kyma and the catalog there, and at
// last the finalizer. The removal of the agent has a finalizer of its own, see package runtimes.
func (r *Reconciler) remove(ctx context.Context, kyma *v1beta2.Kyma) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(kyma, Finalizer) {
		return ctrl.Result{}, nil
	}

	// An error of the connection does not hold up the deletion of the Manifests, which is next.
	there, isElsewhere, claimErr := r.connectToRemove(ctx, kyma)

	// This Kyma has never had the cluster of another one, so it has nothing there to remove.
	var taken takenError
	isOther := errors.As(claimErr, &taken) && kyma.Status.Cluster == ""

	ending, err := r.deleteManifests(ctx, kyma)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(ending) > 0 {
		status := statusOf(kyma, ending)
		status.Message = "waiting for the end of the modules"
		return ctrl.Result{RequeueAfter: skr.Backoff(*kyma.DeletionTimestamp)}, r.reportStatus(ctx, kyma, status)
	}

	clean := isOther || isElsewhere
	err = claimErr
	if claimErr == nil && !isElsewhere {
		clean, err = there.Clean(ctx)
	}

	// A runtime that is gone itself, or does not answer for too long, counts as clean.
	gaveUp := skr.GaveUp(kyma, r.GiveUp, err) && skr.IsSilent(ctx, there)
	if isOther || errors.Is(err, runtimes.ErrGone) || gaveUp {
		clean = true
		err = nil
	}

	if err != nil || !clean {
		return ctrl.Result{RequeueAfter: skr.Backoff(*kyma.DeletionTimestamp)}, err
	}

	return ctrl.Result{}, skr.Release(ctx, r.Client, kyma, Finalizer)
}

// connectToRemove connects to the runtime of a Kyma that is deleted, see claimToRemove.
func (r *Reconciler) connectToRemove(
	ctx context.Context, kyma *v1beta2.Kyma,
) (there *skr.Runtime, isElsewhere bool, err error) {
	there, err = r.connectRuntime(ctx, kyma)
	if err != nil {
		return there, false, err
	}

	isElsewhere, err = r.claimToRemove(ctx, there, kyma)
	return there, isElsewhere, err
}
