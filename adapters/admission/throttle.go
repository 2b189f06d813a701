package admission

import (
	"sync"
	"time"
)

// warnEvery is the shortest time between two warnings of a throttle.
const warnEvery = time.Minute

// throttle bounds the warnings about foreign input. The zero value lets the first pass. It uses the
// monotonic clock and is safe for concurrent use.
type throttle struct {
	mu         sync.Mutex
	next       time.Time
	suppressed int64
}

// pass reports whether a warning may be written now, and the number suppressed since the last one.
func (t *throttle) pass(now time.Time) (suppressed int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if now.Before(t.next) {
		t.suppressed++

		return 0, false
	}

	suppressed, t.suppressed, t.next = t.suppressed, 0, now.Add(warnEvery)

	return suppressed, true
}
