package runtimes

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// followFleet enqueues with low priority, as all runtimes may be stale together.
func (r *reconciler) followFleet() {
	if r.opts.Fleet == nil {
		return
	}

	r.opts.Fleet.OnChange(func(change fleet.Transition) {
		next, isDue := r.book.observeFreshness(&change.To, r.repairPause(), r.opts.Retry)
		if isDue {
			r.lanes.Regular.Add(next.after, handler.LowPriority, reconcile.Request{NamespacedName: next.object})
		}
	})
}

// fleetGrace is the time in which a replica that leads starts its controllers, with full caches.
const fleetGrace = 2 * time.Minute

var errFleetUnfed = errors.New("want the fleet of the listener or consumer in this process")

// checkFleet reports a fleet that is in the options of these controllers only, or not there. The
// listener may be added after them, so that nothing is known before the start. The runnable needs
// to lead, as RunnableFunc does by default.
func (r *reconciler) checkFleet(log logr.Logger) manager.Runnable {
	return manager.RunnableFunc(func(ctx context.Context) error {
		_, heartbeats := r.installer.Agents()
		if r.opts.Fleet == nil && heartbeats {
			log.Info("no fleet: a removed runtime stays in the fleet of the listener for days, "+
				"and a stale one is not reconciled early. Set Options.Fleet to that of the listener",
				"controller", r.opts.Name)
		}
		if r.opts.Fleet == nil {
			return nil
		}

		select {
		case <-ctx.Done():
			return nil
		case <-time.After(fleetGrace):
		}

		if r.opts.Fleet.LeadsSince().IsZero() {
			log.Error(errFleetUnfed,
				"no listener or consumer reports to the fleet of these runtimes, so all runtimes appear as unknown",
				"controller", r.opts.Name)
		}
		return nil
	})
}
