package runtimes

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
)

// KeepCertificates returns a part of a manager that reconciles the CA and the certificate of the
// listener, as often as their status demands. After an error it waits for 3 s. It needs leader
// election, and ends with its context.
//
// It is for an operator that publishes certificates and installs no agents yet. [SetUp] includes
// it.
func KeepCertificates(issuer Certificates) manager.Runnable {
	return manager.RunnableFunc(func(ctx context.Context) error {
		return keepReconciled(ctx, issuer, defaultRetry, func(certificates.Status) {})
	})
}

// keepAuthority reconciles the CA until ctx ends. When a rotation begins to wait for confirmations,
// it reconciles all runtimes once, so that they get the new bundle before their interval ends.
func (r *reconciler) keepAuthority(ctx context.Context) error {
	var before certificates.Phase

	return keepReconciled(ctx, r.certificates, r.opts.Retry, func(status certificates.Status) {
		if status.Phase == certificates.PhaseConfirming && before != status.Phase {
			r.reconcileAll()
		}

		before = status.Phase
		r.opts.Overview.noteAuthority(status)
	})
}

// keepReconciled reconciles the CA until ctx ends. note gets each status, unless Reconcile fails.
func keepReconciled(
	ctx context.Context, issuer Certificates, retry time.Duration, note func(certificates.Status),
) error {
	for {
		status, err := issuer.Reconcile(ctx)

		switch {
		case err != nil && ctx.Err() == nil:
			ctrl.LoggerFrom(ctx).Error(err, "CA cannot be reconciled and is retried")

			status.RequeueAfter = retry
		case err == nil:
			note(status)
		}

		if !pause(ctx, max(status.RequeueAfter, time.Second)) {
			return nil
		}
	}
}

// reconcileAll does not wait. One pending event is enough.
func (r *reconciler) reconcileAll() {
	select {
	case r.confirming <- event.GenericEvent{Object: &v1beta2.Watcher{}}: // An event without object would be dropped.
	default:
	}
}

// pause reports whether ctx has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
