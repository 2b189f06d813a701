package fleet

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// judge returns the freshness of a runtime at a time. The replicas that send heartbeats decide: one
// proof is enough, and the worst trouble counts.
func (r *record) judge(opts *Options, now time.Time) (state State, reason Reason) {
	alive := false
	proved := false
	worst := len(troubles)
	for _, p := range r.replicas {
		if p.isAlive(now) {
			alive = true
			proved = proved || p.isProved(now)
			worst = min(worst, p.trouble(opts, now))
		}
	}

	switch {
	case !alive && r.isRevoked():
		return Stale, ReasonRevoked
	case r.isMissing(now):
		return Stale, r.silenceReason(now)
	case !r.hadHeartbeat:
		return Unknown, ""
	case !alive:
		return Stale, r.silenceReason(now)
	case worst < len(troubles):
		return Degraded, troubles[worst].reason
	case !proved:
		return Unproved, ""
	default:
		return Fresh, ""
	}
}

// silenceReason returns the reason for which a runtime is stale, "" if that is not known.
func (r *record) silenceReason(now time.Time) Reason {
	switch {
	case r.recentRefusal(now) == core.ReasonRevoked:
		return ReasonRevoked
	case r.recentRefusal(now) != "":
		return ReasonRefused
	case r.hadHeartbeat && !r.hasReplica():
		return ReasonStopped
	default:
		return ""
	}
}

// currentStatus is the status as of now, also when no review has found it yet.
func (r *record) currentStatus(opts *Options, now time.Time) Status {
	s := r.status()
	s.Refused = r.recentRefusal(now)

	state, reason := r.judge(opts, now)
	if state != s.State || reason != s.Reason {
		s.State = state
		s.Reason = reason
		s.Since = now
	}
	return s
}

// Conditions returns every state with each of its possible reasons, the worst last.
func Conditions() []Condition {
	all := []Condition{
		{State: Fresh},
		{State: Unproved},
		{State: Unknown},
		{Stale, ReasonStopped},
		{State: Stale},
		{Stale, ReasonRefused},
		{Stale, ReasonRevoked},
	}

	for _, trouble := range slices.Backward(troubles) {
		all = append(all, Condition{Degraded, trouble.reason})
	}
	return all
}
