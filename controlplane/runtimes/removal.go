package runtimes

import (
	"context"
	"errors"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
)

// removeRuntime removes the agent, then its certificates, then the finalizer.
func (a *attempt) removeRuntime(ctx context.Context) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(a.object, a.names.Finalizer) {
		return reconcile.Result{}, nil
	}

	status, err := a.uninstallAgent(ctx)
	if err != nil || status.State != installation.Removed {
		since, noteErr := a.noteRemoval(ctx)
		if noteErr != nil {
			return reconcile.Result{}, errors.Join(err, noteErr)
		}
		if since > a.opts.GiveUp {
			ctrl.LoggerFrom(ctx).Error(err,
				"giving up the removal: the object is released, and its agent stays in the runtime",
				"awaiting", status.Message)
			status = installation.Status{State: installation.Removed}
			err = nil
		}
	}
	if err != nil {
		return a.reportFailure(ctx, err)
	}
	if status.State == installation.Removed {
		if err := a.removeCertificates(ctx); err != nil {
			return a.reportFailure(ctx, err)
		}
	}

	if err := a.reportStatus(ctx, status); err != nil {
		isLast := status.State == installation.Removed && a.object.GetDeletionTimestamp() != nil
		if !isLast {
			return reconcile.Result{}, err
		}
		ctrl.LoggerFrom(ctx).Error(err,
			"removing the finalizer of a deleted object, although its last status was not written")
	}
	if status.State != installation.Removed {
		return a.scheduleNext(status), nil
	}
	return a.release(ctx)
}

// uninstallAgent leaves the ID empty for a runtime that belongs to another object: there is nothing
// to remove.
func (a *attempt) uninstallAgent(ctx context.Context) (installation.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, a.opts.Timeout)
	defer cancel()

	a.id = ""
	if err := a.identifyRuntime(ctx); err != nil {
		return installation.Status{}, err
	}

	isOwned, err := a.certificates.OwnsRuntime(ctx, a.certificatesRuntime())
	if err != nil {
		return installation.Status{}, because(ReasonCertificateFailed, err)
	}
	if !isOwned {
		a.id = ""
		return installation.Status{State: installation.Removed}, nil
	}

	there, err := a.openClient(ctx)
	if err != nil {
		return installation.Status{}, err
	}
	if there == nil { // A runtime that no longer exists contains nothing to remove.
		a.installer.Forget(a.id)
		return installation.Status{State: installation.Removed}, nil
	}

	status, err := a.installer.Uninstall(ctx, installation.Runtime{ID: a.id, Client: there})
	return status, because(ReasonInstallationFailed, err)
}

// removeCertificates runs after the agent has gone, which needs them while it runs. A certificate
// that is left would hold up each rotation, which waits for all runtimes.
func (a *attempt) removeCertificates(ctx context.Context) error {
	if a.id == "" {
		return nil
	}
	return because(ReasonCertificateFailed, a.certificates.RemoveRuntime(ctx, a.certificatesRuntime()))
}

// noteRemoval returns for how long the removal has failed, and writes the time of its first
// failure.
func (a *attempt) noteRemoval(ctx context.Context) (time.Duration, error) {
	first, err := time.Parse(time.RFC3339, a.object.GetAnnotations()[a.names.Key(annotationRemoval)])
	since := time.Since(first)
	if err == nil && since >= 0 {
		return since, nil
	}

	now := time.Now().UTC().Format(time.RFC3339)
	return 0, a.patchIfChanged(ctx, func() { a.setRemoval(now) })
}

// release removes the finalizer, and all that is known of the object.
func (a *attempt) release(ctx context.Context) (reconcile.Result, error) {
	err := a.patchIfChanged(ctx, func() {
		controllerutil.RemoveFinalizer(a.object, a.names.Finalizer)
		a.clearRemoval()
	})
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}

	a.forgetObject(a.key)
	a.forgetRuntime(a.id)
	return reconcile.Result{}, nil
}
