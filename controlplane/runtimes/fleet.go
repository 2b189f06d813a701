package runtimes

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// followFleet enqueues with low priority, as all runtimes may be stale together. The status of a
// runtime that joins by itself follows each change.
func (r *reconciler) followFleet() {
	if r.opts.Fleet == nil {
		return
	}
	r.opts.Fleet.OnChange(func(change fleet.Transition) {
		if object, after, joins := r.book.follow(change.To.Runtime, r.opts.Retry); joins {
			r.lanes.Regular.Add(after, handler.LowPriority, reconcile.Request{NamespacedName: object})
			return
		}
		if object, after, due := r.book.observe(&change.To, r.pause()); due {
			r.lanes.Regular.Add(after, handler.LowPriority, reconcile.Request{NamespacedName: object})
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
			log.Info("no fleet: a removed runtime stays in the fleet of the listener for days, and a stale one is not reconciled early. "+
				"Set Options.Fleet to that of the listener", "controller", r.opts.Name)
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
			log.Error(errFleetUnfed, "no listener or consumer reports to the fleet of these runtimes, "+
				"so all runtimes appear as unknown",
				"controller", r.opts.Name)
		}
		return nil
	})
}

// pause is the least time to the next early reconcile of a runtime, by default a minute. By then,
// all managers have got a heartbeat from after the reconcile.
func (r *reconciler) pause() time.Duration { return 20 * r.opts.Retry }

// repair is the state of early reconciles: each new condition leads to one.
type repair struct {
	// broken has the managers with a condition that a reconcile may end.
	broken    map[core.Manager]fleet.Condition
	verify    bool      // the next reconcile applies all objects
	next      time.Time // of the next early reconcile, at the earliest
	installed string    // the version of the certificates that the agent has
}

func (b *book) noteStale(e *entry) {
	delete(b.stale, e)
	for _, condition := range e.broken {
		if condition.State == fleet.Stale {
			b.stale[e] = struct{}{}
		}
	}
}

// isOutage means that many runtimes are stale, as without a gateway. Reconciles do not help.
func (b *book) isOutage() bool {
	const least, part = 20, 10
	return len(b.stale) > max(least, len(b.runtimes)/part)
}

// observe notes a change of freshness. If an early reconcile is due, it returns its object and the
// time until then. None is due for a runtime that fails, as its lane tries it again.
func (b *book) observe(now *fleet.Status, pause time.Duration) (object client.ObjectKey, after time.Duration, due bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.runtimes[now.Runtime]
	if e == nil || !slices.Contains(e.managers, now.Manager) {
		return client.ObjectKey{}, 0, false
	}
	isNew := e.change(now)
	b.noteStale(e)
	if isNew && now.State == fleet.Stale && b.isOutage() {
		e.verify, isNew = false, false
	}
	if !isNew || e.fails {
		return client.ObjectKey{}, 0, false
	}
	if after = time.Until(e.next); after > 0 {
		return e.object, after, true
	}
	e.next = time.Now().Add(pause)
	return e.object, 0, true
}

// change reports whether the condition is new for the runtime. All managers of an agent have the
// same one.
func (r *repair) change(now *fleet.Status) (isNew bool) {
	condition := fleet.Condition{State: now.State, Reason: now.Reason}
	if !canRepair(condition) {
		delete(r.broken, now.Manager)
		r.verify = r.verify && len(r.broken) > 0
		return false
	}
	isNew = !slices.Contains(slices.Collect(maps.Values(r.broken)), condition)
	if r.broken == nil {
		r.broken = make(map[core.Manager]fleet.Condition)
	}
	r.broken[now.Manager], r.verify = condition, r.verify || isNew
	return isNew
}

// canRepair is false for conditions that load, or the control plane, causes.
func canRepair(c fleet.Condition) bool {
	causedElsewhere := []fleet.Reason{fleet.ReasonDropping, fleet.ReasonPendingTooLong, fleet.ReasonSharedByReplicas}
	return c.State == fleet.Stale || c.State == fleet.Degraded && !slices.Contains(causedElsewhere, c.Reason)
}

// isInstalled is false for an empty version, and while something is to be verified.
func (b *book) isInstalled(object client.ObjectKey, version string) (installed bool) {
	b.edit(object, func(e *entry) { installed = version != "" && e.installed == version && !e.verify })
	return installed
}

func (b *book) beginRepair(object client.ObjectKey) (verify bool) {
	b.edit(object, func(e *entry) {
		if verify, e.verify = e.verify, false; verify {
			b.repairs++
		}
	})
	return verify
}

// endRepair makes the next one wait nine times as long: it takes a tenth of a worker at most.
func (b *book) endRepair(object client.ObjectKey, took, pause time.Duration) {
	const pauses = 9
	b.edit(object, func(e *entry) {
		if next := time.Now().Add(max(pauses*took, pause)); next.After(e.next) {
			e.next = next
		}
	})
}

const (
	// drain is how long agents may send heartbeats after their removal.
	drain = time.Minute
	// lingering bounds the early reconciles for a removed manager that runtimes still send for.
	lingering = 10 * time.Minute
	// maxFormer bounds the former managers of a runtime, as the runtime names them.
	maxFormer = 100
)

// noteFormer adds managers that the agents of a runtime have served until now: those of the
// reconcile before, which may have failed, and those that the runtime has named. It decides about
// that runtime alone.
func (b *book) noteFormer(object client.ObjectKey, current, named []core.Manager) {
	b.edit(object, func(e *entry) {
		for _, manager := range slices.Concat(e.tried, named) {
			if slices.Contains(current, manager) || len(e.former) == maxFormer {
				continue
			}
			if e.former == nil {
				e.former = make(map[core.Manager]time.Time)
			}
			e.former[manager] = time.Now()
		}
		e.tried = current
	})
}

// forgetFormer keeps a manager while former agents send heartbeats for it.
func (r *reconciler) forgetFormer(object client.ObjectKey, id core.RuntimeID, current []core.Manager) time.Duration {
	interval := r.opts.Interval
	r.book.edit(object, func(e *entry) {
		for manager, left := range e.former {
			switch lingers := time.Since(left) < lingering; {
			case slices.Contains(current, manager) || r.opts.Fleet == nil:
				delete(e.former, manager)
			case !r.opts.Fleet.ForgetManager(id, manager):
				if lingers {
					interval = min(interval, drain)
				}
			case !lingers:
				delete(e.former, manager)
			}
		}
	})
	return interval
}
