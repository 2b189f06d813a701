package admission

import (
	"testing"
	"time"
	"unsafe"
)

// A clock that is set back by an hour must not silence warnings for an hour.
func TestThrottleIgnoresTheWallClock(t *testing.T) {
	t.Parallel()

	var warnings throttle

	start := time.Now()

	for _, step := range []struct {
		at         time.Time
		suppressed int64
		pass       bool
	}{
		{start, 0, true},
		{start.Add(warnEvery / 2), 0, false},
		{setBack(start.Add(warnEvery)), 1, true},
		{setBack(start.Add(warnEvery + 1)), 0, false},
		{start.Add(2 * warnEvery), 1, true},
	} {
		if suppressed, pass := warnings.pass(step.at); pass != step.pass || suppressed != step.suppressed {
			t.Errorf("%v after the start: passes: %v, suppressed %d; want %v, %d",
				step.at.Sub(start), pass, suppressed, step.pass, step.suppressed)
		}
	}
}

// setBack returns t as it is after the wall clock was set back by an hour. Its monotonic reading,
// which Sub uses, stays. Package time has no other way to separate the two.
func setBack(t time.Time) time.Time {
	const hourInWall = 3600 << 30 // Seconds stand above 30 bits of nanoseconds.

	*(*uint64)(unsafe.Pointer(&t)) -= hourInWall

	return t
}
