package runtimes

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/certificates"
)

// keepAuthority reconciles the CA until ctx ends. When a rotation begins to wait for confirmations,
// it reconciles all runtimes once, so that they get the new bundle before their interval ends.
func (r *reconciler) keepAuthority(ctx context.Context) error {
	var before certificates.Phase

	for {
		status, err := r.certificates.Reconcile(ctx)

		switch {
		case err != nil && ctx.Err() == nil:
			ctrl.LoggerFrom(ctx).Error(err, "CA cannot be reconciled and is retried")

			status.RequeueAfter = r.opts.Retry
		case err == nil:
			if status.Phase == certificates.PhaseConfirming && before != status.Phase {
				r.reconcileAll()
			}

			before = status.Phase
			r.opts.Overview.noteAuthority(status)
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
