package main

import (
	"slices"
	"sync"
	"time"
)

// samples are durations. They are safe for concurrent use.
type samples struct {
	mu  sync.Mutex
	all []time.Duration
}

func (s *samples) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, d)
}

// take returns the durations so far in their order, and removes them.
func (s *samples) take() sorted {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	slices.Sort(all)
	return all
}

// sorted are durations in their order.
type sorted []time.Duration

// quantile returns 0 without durations.
func (s sorted) quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	return s[min(int(q*float64(len(s))), len(s)-1)]
}
