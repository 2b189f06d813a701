package fleet

import "github.com/runtime-watcher/runtime-watcher/core/hook"

const (
	// perGap is added to the score for a request with a gap.
	perGap = 2
	// sharedFrom is the score from which a replica is shared, until the score is 0. The score is at
	// most mostShared.
	sharedFrom = 8
	mostShared = 24
	// sharedPatience multiplies the silence after which a shared replica is silent, because others
	// take most of its heartbeats.
	sharedPatience = 8
)

// sharing is the evidence that other replicas of the operator take some of the requests of an
// epoch, so that this replica sees gaps although nothing is lost. A request with new numbers and a
// gap adds to the score, and a request without a gap lowers it by 1. Lost batches alone are seldom
// a third of all. Heartbeats without new numbers prove nothing at first, because an outage loses
// them, too. While a replica is shared, they count by their own numbers: a quiet runtime does not
// stay shared.
type sharing struct {
	score int
	on    bool
}

// noteEvidence takes in a request with new numbers and returns the cause for a resync. While the
// replica is shared, a gap is not a cause. The end leads to one resync, for batches that were lost
// meanwhile.
func (s *sharing) noteEvidence(cause hook.ResyncCause) hook.ResyncCause {
	if cause == CauseGap {
		s.score = min(s.score+perGap, mostShared)
	} else {
		s.score = max(s.score-1, 0)
	}

	before := s.on
	s.on = s.isEvident()
	switch {
	case s.on && cause == CauseGap:
		return ""
	case before && !s.on:
		return CauseGap
	default:
		return cause
	}
}

// isEvident reports whether the score turns sharing on, or leaves it on.
func (s *sharing) isEvident() bool {
	if s.on {
		return s.score > 0
	}
	return s.score >= sharedFrom
}
