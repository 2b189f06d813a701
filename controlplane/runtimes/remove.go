package runtimes

import (
	"context"
	"errors"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// remove removes the agent and the certificates, and then the finalizer.
func (r *reconciler) remove(ctx context.Context, object client.Object) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(object)
	if !controllerutil.ContainsFinalizer(object, finalizer) {
		return reconcile.Result{RequeueAfter: r.forgetter.forget(key, "")}, nil
	}
	runtime, status, err := r.uninstall(ctx, object)
	if err != nil || status.State != installation.Removed {
		since, noteErr := r.sinceRemoval(ctx, object)
		if noteErr != nil {
			return reconcile.Result{}, errors.Join(err, noteErr)
		}
		if since > r.opts.GiveUp {
			ctrl.LoggerFrom(ctx).Error(err, "object is let go, and its agent stays in the runtime", "awaiting", status.Message)
			status, err = installation.Status{State: installation.Removed}, nil
		}
	}
	// Certificates go after the agent, which needs them while it runs. One that is left would hold
	// up each rotation, which waits for all runtimes.
	if err == nil && status.State == installation.Removed && runtime.ID != "" {
		err = because(reasonCertificateFailed, r.certificates.RemoveRuntime(ctx, runtime))
	}
	if err != nil {
		return r.fail(ctx, object, runtime.ID, err)
	}
	if err := r.report(ctx, object, runtime.ID, status, contents{}); err != nil {
		if status.State != installation.Removed || object.GetDeletionTimestamp() == nil {
			return reconcile.Result{}, err
		}
		ctrl.LoggerFrom(ctx).Error(err, "deleted object is let go without its last report")
	}
	if status.State != installation.Removed {
		after, _ := r.failures.pause(key, r.opts.Retry, r.opts.Interval)
		return reconcile.Result{RequeueAfter: after}, nil
	}
	return r.release(ctx, object, runtime.ID)
}

// annotationRemoval is the time of the first failed removal, on an object that is held. It outlives
// this process, so that an operator that restarts often gives up, too.
const annotationRemoval = "operator.kyma-project.io/removal-failing-since"

// sinceRemoval returns how long ago the first failed removal was, and notes the first one.
func (r *reconciler) sinceRemoval(ctx context.Context, object client.Object) (time.Duration, error) {
	first, err := time.Parse(time.RFC3339, object.GetAnnotations()[annotationRemoval])
	if since := time.Since(first); err == nil && since >= 0 {
		return since, nil
	}
	now := time.Now().UTC().Format(time.RFC3339)
	return 0, r.edit(ctx, object, func() { setRemoval(object, now) })
}

// setRemoval sets the annotation, or removes it.
func setRemoval(object client.Object, first string) {
	annotations := othersOf(object)
	if first != "" {
		annotations[annotationRemoval] = first
	}
	object.SetAnnotations(annotations)
}

func (r *reconciler) release(ctx context.Context, object client.Object, id core.RuntimeID) (reconcile.Result, error) {
	err := r.edit(ctx, object, func() {
		controllerutil.RemoveFinalizer(object, finalizer)
		setRemoval(object, "")
	})
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	key := client.ObjectKeyFromObject(object)
	r.end(ctx, key)
	return reconcile.Result{RequeueAfter: r.forgetter.forget(key, id)}, nil
}

// errNoID means that an object with an agent in its runtime has lost its ID, as by the removal of a
// label. The agent would get no new certificates.
var errNoID = errors.New("want the ID of a runtime with an agent, have none")

// uninstall removes the agent. It returns the runtime, as far as it is known, and none when the
// runtime belongs to another object: then there is nothing to remove.
func (r *reconciler) uninstall(
	ctx context.Context, object client.Object,
) (certificates.Runtime, installation.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	identity, err := r.identify(ctx, object)
	if err == nil && identity.ID == "" {
		err = errNoID
	}
	if err != nil {
		return certificates.Runtime{}, installation.Status{}, because(reasonIdentityUnknown, err)
	}
	runtime := r.runtimeOf(object, identity)
	owned, err := r.certificates.OwnsRuntime(ctx, runtime)
	if err != nil {
		return runtime, installation.Status{}, because(reasonCertificateFailed, err)
	}
	if !owned {
		return certificates.Runtime{}, installation.Status{State: installation.Removed}, nil
	}
	there, err := r.reach(ctx, object, identity.ID)
	if err != nil {
		return runtime, installation.Status{}, err
	}
	status, err := r.installer.Uninstall(ctx, installation.Runtime{ID: identity.ID, Client: there})
	return runtime, status, because(reasonInstallationFailed, err)
}
