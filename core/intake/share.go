package intake

import (
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// Account is the sender to which a cost is charged: an identified runtime, or the origin of an
// unidentified sender.
type Account struct {
	Name     string
	Stranger bool
}

// shares bounds the requests, events and bytes of each account with a token bucket, and its
// requests in flight. An account that was idle for a life has a full bucket and is forgotten.
type shares struct {
	rate, burst float64
	inFlight    int
	// life is the longest time until an empty bucket, or one in debt, is full again.
	life time.Duration

	mu      sync.Mutex
	all     map[Account]*share
	cleared time.Time
}

// share is the use of one account: a token bucket, and the pauses after refusals. The lock of
// shares guards it.
type share struct {
	tokens   float64
	filled   time.Time
	inFlight int
	// quiet is the end of the pauses of the account.
	quiet time.Time
	// next is the time at which there is room for a further deferred message.
	next time.Time
}

func newShares(rate float64, burst, inFlight int) *shares {
	debt := contract.V3.MaxEvents()
	return &shares{
		rate:     rate,
		burst:    float64(burst),
		inFlight: inFlight,
		life:     time.Duration(float64(burst+debt) / rate * float64(time.Second)),
		all:      make(map[Account]*share),
	}
}

// enterAccount takes cost tokens and counts a request in flight. Without room for it,
// enterAccount returns the time to wait, and leaveAccount must not follow.
func (s *shares) enterAccount(a Account, cost float64, now time.Time) (wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	held := s.fillBucket(a, now)
	cost = min(cost, s.burst)
	switch {
	case held.inFlight >= s.inFlight:
		return time.Second, false
	case held.tokens < cost:
		return s.timeFor(cost - held.tokens), false
	}

	held.tokens -= cost
	held.inFlight++
	return 0, true
}

// chargeAccount takes cost tokens unless the bucket is in debt, and may bring it into debt. Later
// requests wait until that is paid. So a batch that is larger than the burst can be sent at all.
func (s *shares) chargeAccount(a Account, cost float64, now time.Time) (wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	held := s.fillBucket(a, now)
	if held.tokens < 0 && cost > 0 {
		return s.timeFor(1 - held.tokens), false
	}
	held.tokens -= cost
	return 0, true
}

// slack is the factor by which tokens take longer for deferred messages. A message that comes too
// early is carried in vain and delays the messages of other senders.
const slack = 1.1

// deferMessage returns the wait of a message until the share has room for it and for the messages
// that were deferred before it, from 1 s to maxWait.
func (s *shares) deferMessage(a Account, cost float64, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	held := s.fillBucket(a, now)
	wait := min(max(held.next.Sub(now), s.timeFor(1-held.tokens), time.Second), maxWait)
	held.next = now.Add(wait + s.timeFor(slack*cost))
	return wait
}

func (s *shares) leaveAccount(a Account, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensureShare(a, now).inFlight--
}

const (
	// pauseEach is the pause of an account for each of its refused requests. So at most 100 of them
	// a second are answered, on any number of connections.
	pauseEach    = 10 * time.Millisecond
	longestPause = 5 * time.Second
)

// addPause adds a pause to the pauses of an account, which follow each other. It returns how long
// to read nothing.
func (s *shares) addPause(a Account, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	held := s.ensureShare(a, now)
	if held.quiet.Before(now) {
		held.quiet = now
	}
	quiet := min(held.quiet.Add(pauseEach).Sub(now), longestPause)
	held.quiet = now.Add(quiet)
	return quiet
}

func (s *shares) timeFor(tokens float64) time.Duration {
	return time.Duration(tokens / s.rate * float64(time.Second))
}

func (s *shares) fillBucket(a Account, now time.Time) *share {
	held := s.ensureShare(a, now)
	held.tokens = min(s.burst, held.tokens+now.Sub(held.filled).Seconds()*s.rate)
	held.filled = now
	return held
}

func (s *shares) ensureShare(a Account, now time.Time) *share {
	s.forgetIdle(now)
	held := s.all[a]
	if held == nil {
		held = &share{tokens: s.burst, filled: now}
		s.all[a] = held
	}
	return held
}

// forgetIdle removes the accounts that were idle for a life, unless a request of them is in flight.
func (s *shares) forgetIdle(now time.Time) {
	if now.Sub(s.cleared) < s.life {
		return
	}

	kept := make(map[Account]*share) // A map keeps the memory of the keys that it had.
	for a, held := range s.all {
		if held.inFlight > 0 || now.Sub(held.filled) < s.life {
			kept[a] = held
		}
	}

	s.all = kept
	s.cleared = now
}
