package kit

import (
	"slices"
	"sync"
	"time"
)

// Samples are durations. They are safe for concurrent use.
type Samples struct {
	mu  sync.Mutex
	all []time.Duration
}

// Add adds durations.
func (s *Samples) Add(d ...time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, d...)
}

// Take returns the durations so far, and removes them.
func (s *Samples) Take() Delays {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return Sorted(all)
}

// Delays are durations in their order.
type Delays []time.Duration

// Sorted sorts durations.
func Sorted(all []time.Duration) Delays {
	slices.Sort(all)
	return all
}

// At returns a percentile in microseconds, 0 without durations.
func (d Delays) At(percent int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	return d[len(d)*percent/100].Round(time.Microsecond)
}
