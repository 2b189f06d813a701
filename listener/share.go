package listener

import (
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// shares bounds what each runtime may take of a listener: a token bucket, and a number of requests in flight. Its memory is
// bounded by the runtimes that asked within the last two lives of a bucket: one that was left alone for a life is full, and
// need not be remembered.
type shares struct {
	rate, burst float64
	inFlight    int
	life        time.Duration

	mu         sync.Mutex
	young, old map[core.RuntimeID]*share
	turned     time.Time
}

type share struct {
	tokens   float64
	filled   time.Time
	inFlight int
}

func newShares(rate float64, burst, inFlight int) *shares {
	return &shares{
		rate:     rate,
		burst:    float64(burst),
		inFlight: inFlight,
		life:     time.Duration(float64(burst) / rate * float64(time.Second)),
		young:    make(map[core.RuntimeID]*share),
	}
}

// enter takes cost tokens and one place in flight. Without them it returns how long to wait, and must not be followed by leave.
func (s *shares) enter(runtime core.RuntimeID, cost float64, now time.Time) (wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	held := s.find(runtime, now)
	held.tokens = min(s.burst, held.tokens+now.Sub(held.filled).Seconds()*s.rate)
	held.filled = now
	cost = min(cost, s.burst)

	switch {
	case held.inFlight >= s.inFlight:
		return time.Second, false
	case held.tokens < cost:
		return time.Duration((cost - held.tokens) / s.rate * float64(time.Second)), false
	}

	held.tokens -= cost
	held.inFlight++

	return 0, true
}

func (s *shares) leave(runtime core.RuntimeID, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.find(runtime, now).inFlight--
}

func (s *shares) find(runtime core.RuntimeID, now time.Time) *share {
	s.turn(now)

	if held := s.young[runtime]; held != nil {
		return held
	}

	held := s.old[runtime]
	if held == nil {
		held = &share{tokens: s.burst, filled: now}
	}

	s.young[runtime] = held

	return held
}

// turn forgets the runtimes that were left alone for a life, unless a request of them is still in flight.
func (s *shares) turn(now time.Time) {
	if now.Sub(s.turned) < s.life {
		return
	}

	kept := make(map[core.RuntimeID]*share)

	for runtime, held := range s.old {
		if held.inFlight > 0 && s.young[runtime] == nil {
			kept[runtime] = held
		}
	}

	s.old, s.young, s.turned = s.young, kept, now
}
