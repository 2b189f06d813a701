package outbox

import (
	"math"
	"time"
)

// plan contains the times until the dispatcher takes the lock of the lane again. A dispatcher that
// sleeps costs less than one that wakes for each event, so only an event that cannot wait until
// then wakes it. The dispatcher writes the plan under that lock.
type plan struct {
	wakes time.Time // at the latest, zero: after the present call.
	held  time.Time // until then, due events wait for others, unless they fill a batch.
	full  int       // events that fill a batch.
}

// noteSleep notes that the dispatcher waits, negative without end. It does not wait if it has a
// call.
func (p *plan) noteSleep(now time.Time, wait time.Duration) {
	switch {
	case wait == 0:
		p.wakes = time.Time{}
	case wait < 0:
		p.wakes = now.Add(math.MaxInt64)
	default:
		p.wakes = now.Add(wait)
	}
}

// misses reports whether an event is to be sent before the dispatcher wakes.
func (p *plan) misses(due time.Time) bool { return latest(due, p.held).Before(p.wakes) }
