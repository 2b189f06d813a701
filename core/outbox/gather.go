package outbox

import (
	"slices"
	"time"
)

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
	vain   int       // waits in a row that gathered nothing.
	skips  int       // calls that do not wait, still to come.
	last   int       // changes that the last wait has gathered.
}

// windowEnd returns the time until which due events wait for further events. It is zero if they do
// not wait.
func (g *gather) windowEnd(window time.Duration) (end time.Time) {
	if g.skips > 0 {
		return end
	}
	if g.hasMany() {
		window *= 2
	}
	return g.called.Add(window)
}

func (g *gather) hasMany() bool { return g.last >= manyGathered }

// noteCall learns from the batch of a call whether waiting pays. The argument settling is the
// number of events that become due soon. Events that became due before held have waited until then.
// Resends do not count, because they are due together anyway.
func (g *gather) noteCall(batch []*entry, settling int, window time.Duration, held, now time.Time) {
	isSoon := now.Sub(g.called) < window
	hasWaited := slices.ContainsFunc(batch, func(e *entry) bool { return e.due.Before(held) })
	g.called = now
	g.last = 0

	if !hasWaited {
		if isSoon && g.skips > 0 {
			g.skips--
		}
		return
	}

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
