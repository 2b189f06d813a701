package outbox

import "time"

const (
	// probeAfter is the number of failures in a row after which the next attempt has at most
	// probeSize elements, because the size of the batch may be their cause.
	probeAfter = 3
	probeSize  = 8
	// leastAfter is that number after which the next attempt has one event.
	leastAfter = 20
	// refusalMemory is the time for which a lane sends nothing of a size that the receiver, or the
	// path to it, has refused as too large.
	refusalMemory = 10 * time.Minute
	// suspicionMemory is that time after a failure of another cause. It is short, because the size
	// is a guess.
	suspicionMemory = time.Minute
	// step is the part of the limit by which it still grows towards a size that was refused.
	step = 8
)

// size bounds the elements of a batch of one lane: its events and its heartbeat. The limit shrinks
// to a half when a batch is too large, grows while batches of that size arrive, and so finds the
// size that fits. All methods need the lock of the lane.
type size struct {
	// most is the bound in [Options].
	most int
	// limit bounds the next batch.
	limit int
	// refused is the smallest size that was refused, 0 if none is known. It counts until expires.
	refused int
	expires time.Time
	// large is whether a batch was refused as too large since the limit was most. Nothing of such a
	// batch was seen, so a heartbeat may travel alone, before the numbers of that batch.
	large bool
}

func newSize(most int) size { return size{most: most, limit: most} }

// isNarrow reports whether batches are smaller than the options allow. The smallest batch cannot
// shrink. If it was too large, a heartbeat has no room next to its event.
func (s *size) isNarrow() bool { return s.limit < s.most || s.large }

// shrinkLimit makes batches smaller: a batch of so many elements was too large.
func (s *size) shrinkLimit(elements int, now time.Time, memory time.Duration) {
	const half = 2
	s.limit = max(min(s.limit, elements/half), 1)
	s.refused = elements
	s.expires = now.Add(memory)
}

// forgetRefusal is for one event alone that was too large: no other event was the cause.
func (s *size) forgetRefusal() { s.refused = 0 }

// noteFailure notes a failure of any cause, after which there are so many in a row.
func (s *size) noteFailure(elements, failures int, now time.Time) {
	switch {
	case failures >= leastAfter:
		s.limit = 1
	case failures >= probeAfter:
		s.limit = min(s.limit, probeSize)
	case s.isNarrow() && failures == 1 && elements > 1:
		s.shrinkLimit(elements, now, suspicionMemory)
	}
}

// noteArrival notes that a batch of so many elements arrived. A smaller batch than the limit allows
// shows nothing.
func (s *size) noteArrival(elements int, now time.Time) {
	if !s.isNarrow() || elements < s.limit {
		return
	}

	const double = 2
	if !now.Before(s.expires) {
		s.refused = 0
	}

	if s.refused == 0 {
		s.limit = min(double*s.limit, s.most)
		s.large = s.large && s.limit < s.most
		return
	}

	middle := min(double*s.limit, (s.limit+s.refused)/double)
	if middle-s.limit > s.limit/step {
		s.limit = middle
	}
}
