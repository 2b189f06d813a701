package runtimes

import (
	"errors"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
)

// slowReconcile is the duration of a reconcile above which a runtime belongs to the failing lane,
// even if nothing has failed.
const slowReconcile = 20 * time.Second

// newLanes makes two lanes. The failing lane (Slow) has the runtimes with a failed or slow last
// reconcile, so that they take no worker and no memory from the regular lane.
func (r *reconciler) newLanes() *remote.Lanes[reconcile.Request] {
	cluster := func(request reconcile.Request) string { return request.String() }
	return remote.NewLanes(cluster, reconcile.Func(r.reconcile), remote.LanesOptions[reconcile.Request]{
		Share: 1, Timeout: 2 * r.opts.Timeout, Judge: r.chooseLane, SlowWorkers: r.opts.Concurrent,
	})
}

// chooseLane moves a runtime that fails to the failing lane, and notes that. Those that fail for
// long come last there.
func (r *reconciler) chooseLane(request reconcile.Request, took time.Duration, err error, slow bool) remote.Verdict {
	isRetried := isFailure(err) && !errors.Is(err, reconcile.TerminalError(nil))
	if isRetried {
		r.book.setFails(request.NamespacedName, true)
		age := r.book.beginWaiting(request.NamespacedName)
		return remote.Verdict{
			Slow: true, Retry: true, After: spread(r.retryAfter(age)), Priority: -int(age.Minutes()),
		}
	}
	if err != nil {
		return remote.Verdict{Slow: slow} // Such as a conflict.
	}

	r.book.setFails(request.NamespacedName, false)
	return remote.Verdict{Slow: took >= slowReconcile}
}
