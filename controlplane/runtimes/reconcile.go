package runtimes

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
)

const conflictPause = time.Second

// reconcile tries again after a conflict: the cache has not seen the last write yet.
func (r *reconciler) reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcileObject(ctx, request)
	if apierrors.IsConflict(err) && !isFailure(err) {
		return reconcile.Result{RequeueAfter: conflictPause}, nil
	}
	return result, err
}

func (r *reconciler) reconcileObject(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	// The work in a runtime has half of this time, which leaves time to report the result.
	ctx, cancel := context.WithTimeout(ctx, 2*r.opts.Timeout)
	defer cancel()

	object, _ := r.prototype.DeepCopyObject().(client.Object) // A copy has the same type.
	err := r.client.Get(ctx, request.NamespacedName, object)
	if apierrors.IsNotFound(err) {
		id := r.forgetObject(request.NamespacedName)
		r.forgetRuntime(id)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}

	a := &attempt{reconciler: r, object: object, key: client.ObjectKeyFromObject(object)}
	if object.GetDeletionTimestamp() != nil {
		return a.removeRuntime(ctx)
	}
	return a.keepRuntime(ctx)
}

// keepRuntime identifies the runtime of an object, installs its agent, and reports the result.
func (a *attempt) keepRuntime(ctx context.Context) (reconcile.Result, error) {
	if err := a.identifyRuntime(ctx); err != nil {
		return a.reportFailure(ctx, err)
	}
	if a.id == "" { // The object has no runtime.
		return reconcile.Result{}, nil
	}

	isSkipped := a.isSkipped()
	if a.identity.Remove && !isSkipped {
		return a.removeRuntime(ctx)
	}
	if err := a.patchIfChanged(ctx, a.clearRemoval); err != nil {
		return reconcile.Result{}, err
	}
	if isSkipped {
		waiting := awaiting(ReasonSkipped, "waiting for the end of an opt-out")
		return reconcile.Result{}, a.reportStatus(ctx, waiting)
	}

	a.book.addObject(a.key, a.id)
	a.book.noteJoins(a.key, a.identity.Joins)
	has, err := a.readContents(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	a.has = has

	status, err := a.installOrJudge(ctx)
	if err != nil {
		return a.reportFailure(ctx, err)
	}
	if err := a.reportStatus(ctx, status); err != nil {
		return reconcile.Result{}, err
	}
	return a.scheduleNext(status), nil
}

// installOrJudge installs the agent. For a runtime that joins by itself, it installs nothing and
// derives the status from the fleet.
func (a *attempt) installOrJudge(ctx context.Context) (installation.Status, error) {
	if a.identity.Joins {
		a.has.watchers = nil // Nothing was installed from here.
		return a.judgeJoined()
	}

	status, err := a.installAgent(ctx)
	a.book.noteFormer(a.key, a.has.managers, status.Former) // Former is set even with an error.
	waiting, isPending := errors.AsType[pending](err)
	if isPending {
		return waiting.status, nil
	}
	return status, err
}

// installAgent issues the certificates, connects to the runtime, and installs the agent. If the
// runtime has the newest certificates, it only checks the agent.
func (a *attempt) installAgent(ctx context.Context) (installation.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, a.opts.Timeout)
	defer cancel()

	if err := a.addFinalizer(ctx); err != nil {
		return installation.Status{}, err
	}

	version := a.issuedVersion()
	if a.book.isInstalled(a.key, version) {
		return a.checkAgent(ctx, version)
	}

	secret, err := a.issueSecret(ctx)
	if err != nil {
		return installation.Status{}, err
	}
	target, err := a.connectRuntime(ctx)
	if err != nil {
		return installation.Status{}, err
	}
	target.Secret = secret
	return a.installIn(ctx, target, version)
}

// checkAgent reads no certificates unless the agent has changed. It then installs the agent through
// the same connection.
func (a *attempt) checkAgent(ctx context.Context, version string) (installation.Status, error) {
	target, err := a.connectRuntime(ctx)
	if err != nil {
		return installation.Status{}, err
	}
	status, unchanged, err := a.installer.Unchanged(ctx, target)
	if err != nil {
		return status, because(installReason(err), err)
	}
	if unchanged {
		return status, nil
	}

	target.Secret, err = a.issueSecret(ctx)
	if err != nil {
		return installation.Status{}, err
	}
	return a.installIn(ctx, target, version)
}

func (a *attempt) addFinalizer(ctx context.Context) error {
	return a.patchIfChanged(ctx, func() { controllerutil.AddFinalizer(a.object, a.names.Finalizer) })
}
