package admission

import (
	"sync/atomic"
	"time"
)

const warnEvery = time.Minute

// throttle lets one warning a minute pass, so that foreign input can not flood the log. The zero value lets the first pass.
type throttle struct {
	next       atomic.Int64 // Unix time in nanoseconds
	suppressed atomic.Int64
}

// pass reports whether a warning may be written now, and how many were kept back since the last one.
func (t *throttle) pass(now time.Time) (suppressed int64, ok bool) {
	next := t.next.Load()
	if now.UnixNano() < next || !t.next.CompareAndSwap(next, now.Add(warnEvery).UnixNano()) {
		t.suppressed.Add(1)

		return 0, false
	}

	return t.suppressed.Swap(0), true
}
