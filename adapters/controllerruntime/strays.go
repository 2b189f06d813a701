package controllerruntime

import (
	"sync"
	"time"
)

const (
	// strayAfter is the time after which a request that is in the queue no more should have been
	// reconciled.
	strayAfter = 30 * time.Second
	// maxFollowed bounds the requests that are followed at a time.
	maxFollowed = 16
	// fewStrays are no evidence: a reconcile may end before it calls Client, or be a long one.
	fewStrays = 3
)

// strays finds a source in the wrong controller. A source cannot see which controller starts it.
// But the reconciler of the right controller calls Client with the requests of this source, and
// another reconciler calls Client of another source. The zero value is ready to use.
type strays[request comparable] struct {
	mu sync.Mutex
	// followed contains requests for changes, with the times at which they were enqueued.
	followed map[request]time.Time
	// met counts the followed requests with which Client was called, and missed the others.
	met, missed int
	// used means that a reconcile has called Client, and reported that the log names the source.
	used, reported bool
}

// noteEnqueued follows a request, if there is room.
func (s *strays[request]) noteEnqueued(r request, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	_, known := s.followed[r]
	if s.reported || known || len(s.followed) >= maxFollowed {
		return
	}
	if s.followed == nil {
		s.followed = make(map[request]time.Time)
	}
	s.followed[r] = now
}

// noteReconciled notes a call of Client.
func (s *strays[request]) noteReconciled(r request) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.used = true
	if _, known := s.followed[r]; known {
		delete(s.followed, r)
		s.met++
	}
}

// takeForeign reports, once, that Client is called, and seldom with the requests of this source.
// The queue of its controller must be empty: another request may only wait.
func (s *strays[request]) takeForeign(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.reported {
		return false
	}

	for r, since := range s.followed {
		if now.Sub(since) > strayAfter {
			delete(s.followed, r)
			s.missed++
		}
	}

	s.reported = s.used && s.missed > fewStrays+2*s.met
	if s.reported {
		s.followed = nil
	}
	return s.reported
}
