package outbox

import "time"

const (
	// vainGathers is the number of waits in a row that gathered nothing, after which events do not
	// wait. At 100 changes a second, that happens once in some minutes.
	vainGathers = 2
	// ungathered is the number of calls without a wait after that. A writer that waits for the
	// reconcile of each write has no event that could travel with another one, and so less than 1 %
	// of its events wait in vain.
	ungathered = 256
	// manyGathered is the number of changes of one wait from which on the next wait is twice as
	// long: with 80 changes a second and more.
	manyGathered = 4
)

// gather makes events that become due shortly after a call wait for each other. The dispatcher uses
// it under the lock of the lane.
type gather struct {
	called time.Time // when the last call began.
	waited bool      // an event waits since then.
	vain   int       // waits in a row that gathered nothing.
	skips  int       // calls that do not wait, still to come.
	last   int       // changes that the last wait has gathered.
}

// left returns for how long a due event waits for others, at most 0 if it does not.
func (g *gather) left(window time.Duration, now time.Time) time.Duration {
	if g.skips > 0 {
		return 0
	}
	if g.last >= manyGathered {
		window *= 2
	}
	return g.called.Add(window).Sub(now)
}

func (g *gather) noteWaiting() { g.waited = true }

// noteCall learns from the batch of a call whether waiting gathers events, beside which settling
// ones follow soon. Resends do not count, because they are due together anyway.
func (g *gather) noteCall(batch []*entry, settling int, window time.Duration, now time.Time) {
	isSoon := now.Sub(g.called) < window
	g.called = now
	g.last = 0

	if !g.waited {
		if isSoon && g.skips > 0 {
			g.skips--
		}
		return
	}

	g.waited = false

	for _, e := range batch {
		if !e.newest.Before(e.accepted) {
			g.last++
		}
	}

	if g.last+settling > 1 {
		g.vain = 0
		return
	}

	g.vain++
	if g.vain >= vainGathers {
		g.skips = ungathered
	}
}
