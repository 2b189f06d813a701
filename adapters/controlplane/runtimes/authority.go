package runtimes

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/certificates"
)

// lookAfterCA runs until ctx ends. When a rotation waits for all runtimes to get their new bundle, they are all looked at, once: else
// it would wait for the interval, too.
func (r *reconciler) lookAfterCA(ctx context.Context) error {
	var before certificates.Phase

	for {
		status, err := r.certificates.Reconcile(ctx)
		if err != nil {
			if ctx.Err() == nil {
				ctrl.LoggerFrom(ctx).Error(err, "CA can not be looked after, it is tried again")
			}

			status.RequeueAfter = r.opts.Retry
		} else {
			if status.Phase == certificates.PhaseConfirming && before != status.Phase {
				r.lookAtAll()
			}

			before = status.Phase
		}

		if !pause(ctx, max(status.RequeueAfter, time.Second)) {
			return nil
		}
	}
}

// lookAtAll does not wait: when there is a look at all to come, that is enough.
func (r *reconciler) lookAtAll() {
	select {
	case r.confirming <- event.GenericEvent{Object: &v1beta2.Watcher{}}: // The object does not matter, but none would be dropped.
	default:
	}
}

// pause reports whether ctx goes on.
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
