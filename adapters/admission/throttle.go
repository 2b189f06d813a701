package admission

import (
	"sync"
	"time"
)

// warnEvery is the shortest time between two warnings of a throttle.
const warnEvery = time.Minute

// throttle bounds the warnings about requests of others, so that they cannot fill a log. The zero
// value allows the first warning. It is safe for concurrent use.
type throttle struct {
	// mu guards the fields below.
	mu sync.Mutex
	// next is the time from which a warning is allowed.
	next time.Time
	// suppressed counts the warnings since the last one.
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
