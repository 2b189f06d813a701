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

// gatherLeft returns for how long the events that are due wait for others. A heartbeat that is due,
// a batch that is full, and a manager that is back do not wait.
func (l *lane) gatherLeft(limit int, now time.Time) time.Duration {
	isDue := l.ready.isDue(now) || l.refused.isDue(now)
	isFull := len(l.ready)+len(l.refused) >= limit
	if !isDue || isFull || l.failures > 0 || l.pulse.due(now) || l.gather.skips > 0 {
		return 0
	}

	window := l.opts.Gather
	if l.gather.last >= manyGathered {
		window *= 2
	}
	left := l.gather.called.Add(window).Sub(now)
	if left > 0 {
		l.gather.waited = true
	}
	return left
}

// noteTaken learns from a batch whether waiting gathers events. Resends do not count, because they
// are due together anyway.
func (l *lane) noteTaken(batch []*entry, now time.Time) {
	g := &l.gather
	isSoon := now.Sub(g.called) < l.opts.Gather
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
	settling := len(l.ready) // They follow soon.
	if g.last+settling > 1 {
		g.vain = 0
		return
	}
	g.vain++
	if g.vain >= vainGathers {
		g.skips = ungathered
	}
}
