package outbox

import (
	"errors"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// pausePart is the divisor of the part of an outage that the pause after it may take.
	pausePart = 8
	// shortOutage is the length that each shorter outage counts as.
	shortOutage = 16 * time.Second
	// maxDoublings bounds the exponent of the backoff, so that no shift overflows.
	maxDoublings = 20
)

// longestPause bounds the pause of a lane that has failed for so long. A receiver that is not ready
// may wait for the election of a leader, which takes 15 to 18 s. A pause that doubles would last as
// long again. Without an answer MaxBackoff remains the bound, because each sender then needs a
// handshake, and handshakes must not come together.
func (o Options) longestPause(err error, failing time.Duration) time.Duration {
	if !errors.Is(err, core.ErrNotReady) {
		return o.MaxBackoff
	}
	return min(o.MaxBackoff, max(failing, shortOutage)/pausePart)
}

// backoff doubles the wait with each failure, up to longest. Half of it is random. A longer wait
// that the receiver asks for is kept. Up to a quarter is added, so that senders do not come back at
// the same moment.
func (o Options) backoff(failures int, longest time.Duration, err error) time.Duration {
	wait := longest
	if doublings := failures - 1; doublings < maxDoublings {
		wait = min(wait, o.MinBackoff<<doublings)
	}
	wait = wait/2 + o.jitter(wait/2)

	if asked := core.RetryAfter(err); asked > 0 {
		wait = max(wait, asked+o.jitter(asked/4))
	}
	return wait
}

func (o Options) jitter(d time.Duration) time.Duration {
	return time.Duration(o.Random() * float64(d))
}

// soonest returns the shorter wait. A negative wait has no end.
func soonest(a, b time.Duration) time.Duration {
	if a < 0 || b < 0 {
		return max(a, b)
	}
	return min(a, b)
}
