package fleet

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// maxReplicas bounds the replicas of a runtime: it is foreign input.
const maxReplicas = 8

// key identifies a record.
type key struct {
	runtime core.RuntimeID
	manager core.Manager
}

// record is the knowledge of one runtime for one manager. It decides on the freshness (judge.go)
// and on resyncs (observe.go). Requests of the runtime and the reviews of the fleet change it,
// under the lock of the fleet.
type record struct {
	key

	// The result of the last review.
	state  State
	reason Reason
	since  time.Time

	// The requests of the runtime.
	expectedSince time.Time // zero if the runtime is not expected.
	firstRequest  time.Time
	lastSeen      time.Time
	hadHeartbeat  bool // at any time.
	lastRefusal   refusal
	sender        *sender // the last one that was not revoked when it sent.
	replicas      []*replica

	// resend is a resend that no replica in replicas holds: of replicas that left or were removed
	// before their resend was due, or that a new fleet does not know.
	resend resync
}

// refusal is the last refusal of a whole request.
type refusal struct {
	reason core.Reason
	at     time.Time
}

func (r *record) replicaOf(epoch string) *replica {
	for _, p := range r.replicas {
		if p.epoch == epoch {
			return p
		}
	}
	return nil
}

func (r *record) hasReplica() bool {
	return slices.ContainsFunc(r.replicas, func(p *replica) bool { return !p.gone })
}

// isSpeaking reports whether the runtime sends events or heartbeats.
func (r *record) isSpeaking(now time.Time) bool {
	if slices.ContainsFunc(r.replicas, func(p *replica) bool { return p.isSpeaking(now) }) {
		return true
	}

	// A sender without heartbeats cannot announce that it leaves.
	return !r.hadHeartbeat && !r.sender.isRevoked() && now.Sub(r.lastSeen) <= defaultPatience()
}

// isMissing reports whether the runtime is expected, and silent for too long before its first
// heartbeat. A sender without epoch has no heartbeats.
func (r *record) isMissing(now time.Time) bool {
	if r.expectedSince.IsZero() || r.hadHeartbeat {
		return false
	}
	mustHaveHeartbeats := r.lastSeen.IsZero() || r.hasReplica()
	return mustHaveHeartbeats && now.Sub(latest(r.expectedSince, r.lastSeen)) > defaultPatience()
}

// isForgettable reports whether the runtime is silent for longer than after, and not expected. A
// runtime with heartbeats at longer intervals is neither stale nor unknown.
func (r *record) isForgettable(after time.Duration, now time.Time) bool {
	isSilent := r.state == Stale || r.state == Unknown
	return isSilent && r.expectedSince.IsZero() && now.Sub(r.lastSeen) > after
}

// isRevoked reports whether each replica that is not gone has a revoked sender.
func (r *record) isRevoked() bool {
	for _, p := range r.replicas {
		if !p.gone && !p.sender.isRevoked() {
			return false
		}
	}
	return r.sender.isRevoked()
}

// recentRefusal returns "" if the last refusal is so old that the runtime would have tried again.
func (r *record) recentRefusal(now time.Time) core.Reason {
	if now.Sub(r.lastRefusal.at) > longestPause+defaultPatience() {
		return ""
	}
	return r.lastRefusal.reason
}

// status is the result of the last review, with the replicas.
func (r *record) status() Status {
	s := Status{
		Runtime:  r.runtime,
		Manager:  r.manager,
		State:    r.state,
		Reason:   r.reason,
		Since:    r.since,
		LastSeen: r.lastSeen,
	}

	for _, p := range r.replicas {
		if !p.gone {
			s.Replicas = append(s.Replicas, p.status())
		}
	}
	return s
}
