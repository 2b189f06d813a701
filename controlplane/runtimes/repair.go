package runtimes

import (
	"maps"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// repair is the state of early reconciles: each new condition leads to an early reconcile. The lock
// of its book guards it.
type repair struct {
	// broken contains the managers with a condition that a reconcile may end.
	broken    map[core.Manager]fleet.Condition
	verify    bool      // The next reconcile applies all objects.
	next      time.Time // of the next early reconcile, at the earliest
	installed string    // the version of the certificates that the agent has
}

// observeStatus notes a condition of the fleet, and reports whether it is new for the runtime. All
// managers of an agent have the same condition.
func (r *repair) observeStatus(now *fleet.Status) (isNew bool) {
	condition := fleet.Condition{State: now.State, Reason: now.Reason}
	if !canRepair(condition) {
		delete(r.broken, now.Manager)
		if len(r.broken) == 0 {
			r.verify = false
		}
		return false
	}

	isNew = !slices.Contains(slices.Collect(maps.Values(r.broken)), condition)
	if r.broken == nil {
		r.broken = make(map[core.Manager]fleet.Condition)
	}
	r.broken[now.Manager] = condition
	if isNew {
		r.verify = true
	}
	return isNew
}

// canRepair is false for conditions that load, or the control plane, causes.
func canRepair(c fleet.Condition) bool {
	switch c.State {
	case fleet.Stale:
		return true
	case fleet.Degraded:
		causedElsewhere := []fleet.Reason{
			fleet.ReasonDropping, fleet.ReasonPendingTooLong, fleet.ReasonSharedByReplicas,
		}
		return !slices.Contains(causedElsewhere, c.Reason)
	default:
		return false
	}
}

// isStale reports whether the runtime is stale for a manager.
func (r *repair) isStale() bool {
	for _, condition := range r.broken {
		if condition.State == fleet.Stale {
			return true
		}
	}
	return false
}

// keepManagers forgets the conditions of all other managers.
func (r *repair) keepManagers(current []core.Manager) {
	maps.DeleteFunc(r.broken, func(m core.Manager, _ fleet.Condition) bool { return !slices.Contains(current, m) })
}

// reserveNext returns the time until an early reconcile may begin. If that is now, the next one has
// to wait for a pause.
func (r *repair) reserveNext(pause time.Duration) (after time.Duration) {
	after = time.Until(r.next)
	if after > 0 {
		return after
	}

	r.next = time.Now().Add(pause)
	return 0
}

// takeVerify reports once that the next reconcile applies all objects.
func (r *repair) takeVerify() (verify bool) {
	verify = r.verify
	r.verify = false
	return verify
}

// delayNext makes the next early reconcile wait nine times as long as the last one took, so that a
// runtime takes a tenth of a worker at most.
func (r *repair) delayNext(took, least time.Duration) {
	const pauses = 9
	next := time.Now().Add(max(pauses*took, least))
	if next.After(r.next) {
		r.next = next
	}
}
