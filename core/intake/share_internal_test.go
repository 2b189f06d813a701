package intake

import (
	"fmt"
	"testing"
	"time"
)

var prod = Account{Name: "prod"}

// visit enters and leaves.
func visit(s *shares, a Account, now time.Time) (time.Duration, bool) {
	wait, ok := s.enterAccount(a, 1, now)
	if ok {
		s.leaveAccount(a, now)
	}
	return wait, ok
}

// A burst is accepted, and then as many requests as the rate allows. The wait that is asked for
// suffices.
func TestSharesRefill(t *testing.T) {
	t.Parallel()

	s := newShares(2, 4, 1)
	now := time.Unix(1000, 0)
	for n := range 4 {
		if _, ok := visit(s, prod, now); !ok {
			t.Fatalf("request %d of a burst of 4 was refused", n)
		}
	}

	if wait, ok := visit(s, prod, now); ok || wait != 500*time.Millisecond {
		t.Errorf("beyond the burst: taken %v, wait %v, want to wait 500ms for the next token", ok, wait)
	}
	if _, ok := visit(s, Account{Name: "other"}, now); !ok {
		t.Error("another runtime was refused")
	}

	now = now.Add(500 * time.Millisecond)
	if _, ok := visit(s, prod, now); !ok {
		t.Error("refused after the wait that was asked for")
	}

	// More than two lives: it is forgotten, and starts with a full bucket, but with no more than
	// that.
	now = now.Add(time.Hour)
	taken := 0
	for range 10 {
		if _, ok := visit(s, prod, now); ok {
			taken++
		}
	}

	if taken != 4 {
		t.Errorf("%d taken at once after a rest, want the burst of 4", taken)
	}
}

// A transport that keeps messages delivers each when there is room for it, none in vain and none
// later than in 5 min.
func TestSharesSpreadDeferredMessages(t *testing.T) {
	t.Parallel()

	const cost, messages = 100, 12
	s := newShares(50, 1, 1)
	now := time.Unix(1000, 0)
	var due [messages]time.Time
	for n := range due {
		due[n] = now.Add(s.deferMessage(prod, cost, now))
	}

	last := now
	for n, at := range due {
		if _, ok := s.chargeAccount(prod, cost, at); !ok || at.Sub(last) > 3*time.Second {
			t.Errorf("message %d, worth 2s, comes %v after the last one: taken %v", n, at.Sub(last), ok)
		}
		last = at
	}

	var wait time.Duration
	for range 1000 {
		wait = s.deferMessage(prod, cost, last)
	}

	if wait != maxWait {
		t.Errorf("the wait behind a thousand messages is %v, want %v", wait, maxWait)
	}
}

func TestSharesBoundWhatIsInFlight(t *testing.T) {
	t.Parallel()

	s := newShares(100, 100, 2)
	now := time.Unix(1000, 0)
	for range 2 {
		if _, ok := s.enterAccount(prod, 1, now); !ok {
			t.Fatal("refused although there is room")
		}
	}

	if wait, ok := s.enterAccount(prod, 1, now); ok || wait != time.Second {
		t.Errorf("third of 2: taken %v, wait %v, want to wait 1s", ok, wait)
	}

	s.leaveAccount(prod, now)
	if _, ok := s.enterAccount(prod, 1, now); !ok {
		t.Error("refused although one has left")
	}
}

// Accounts are foreign input: an idle one is forgotten, except while a request of it is in flight.
func TestSharesForgetTheIdle(t *testing.T) {
	t.Parallel()

	const each = 1000
	s := newShares(1, 10, 1)
	now := time.Unix(1000, 0)
	if _, ok := s.enterAccount(prod, 1, now); !ok {
		t.Fatal("refused although there is room")
	}

	most := 0
	for round := range 10 {
		for n := range each {
			visit(s, Account{Name: fmt.Sprintf("%d-%d", round, n)}, now)
		}
		most = max(most, len(s.all))
		now = now.Add(s.life)
	}

	if most > 2*(each+1) {
		t.Errorf("%d runtimes were remembered, want at most those of two lives", most)
	}
	if _, ok := s.enterAccount(prod, 1, now); ok {
		t.Error("the runtime with a request in flight was forgotten")
	}

	s.leaveAccount(prod, now)
	if _, ok := visit(s, prod, now); !ok {
		t.Error("refused although nothing is in flight")
	}

	for range 3 {
		now = now.Add(s.life)
		visit(s, Account{Name: "last"}, now)
	}

	if n := len(s.all); n > 2 {
		t.Errorf("%d runtimes are remembered after a rest, want the last one only", n)
	}
}

// A message may cost more than the burst. A full share takes it, because no share would ever have
// more room for it.
func TestSharesTakeAMessageAboveTheBurst(t *testing.T) {
	t.Parallel()

	const burst, cost = 4, 100
	s := newShares(1, burst, 2)
	now := time.Unix(1000, 0)
	if wait, ok := s.enterAccount(prod, cost, now); !ok {
		t.Errorf("a full share refuses the message, and asks for a wait of %v", wait)
	}

	if wait, ok := s.enterAccount(prod, cost, now); ok || wait != burst*time.Second {
		t.Errorf("an empty share: taken %t, wait %v, want the time to fill it, %v", ok, wait, burst*time.Second)
	}
}
