package outbox

import (
	"errors"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// call is one call of the forwarder, with the entries that its batch carries. The goroutine of the
// call owns it. The entries belong to the lane.
type call struct {
	entries []*entry
	batch   core.Batch
	probe   bool      // the attempt after a failure
	named   uint64    // schedule.named before this heartbeat, if the batch has one
	started time.Time // under the lock, so that it is before or after a pause

	err error
	// receiverChecks means that the receiver checks the read of an event, after Settle or later.
	// Options.RecheckAfter reads that from the last answer of the manager. With an Epoch, a lane
	// has one call at a time, so the last answer is the answer to this call.
	receiverChecks bool
}

// elements is the size of the batch.
func (c *call) elements() int {
	if c.batch.Heartbeat == nil {
		return len(c.entries)
	}
	return len(c.entries) + 1
}

// answer is the result of a call: one error for the whole batch, or errors for some of its
// elements. Without an error, the receiver took all.
type answer struct {
	*call

	whole  error
	events core.EventErrors // by the index of the event. The heartbeat has the index after the last.
	now    time.Time
}

// newAnswer sorts the error of a call. A batch of which nothing was sent failed as a whole. A
// permanent error of a batch of one event is the error of the event.
func newAnswer(c *call, now time.Time) answer {
	a := answer{call: c, now: now}
	if c.err == nil {
		return a
	}

	var events core.EventErrors
	isPartial := errors.As(c.err, &events)
	isOneEvent := len(c.entries) == 1 && c.batch.Heartbeat == nil
	switch {
	case isPartial && !c.isUnsent(events):
		a.events = events
	case isOneEvent && core.IsPermanent(c.err):
		a.events = core.EventErrors{0: c.err}
	case isPartial:
		a.whole = core.ErrNotSent
	default:
		a.whole = c.err
	}
	return a
}

func (c *call) isUnsent(events core.EventErrors) bool {
	for i := range c.elements() {
		if !errors.Is(events[i], core.ErrNotSent) {
			return false
		}
	}
	return true
}

// isTaken reports whether the manager took the batch. A manager that refuses a lone heartbeat may
// use a contract without heartbeats.
func (a *answer) isTaken() bool {
	isLoneHeartbeat := len(a.entries) == 0
	if isLoneHeartbeat {
		return a.err == nil
	}
	return a.whole == nil
}

// ofHeartbeat returns the error for the heartbeat of the batch alone.
func (a *answer) ofHeartbeat() error { return a.events[len(a.entries)] }

// fate is the meaning of an answer for one of its events.
type fate uint8

const (
	// unread means that the batch was too large. The receiver has seen nothing of it.
	unread fate = iota
	// rejected means that the batch was refused as a whole and would be refused again.
	rejected
	// failed means that the call failed. The receiver may have seen the event.
	failed
	// unsent means that the batch was cut before the event. Later numbers may have arrived.
	unsent
	// delivered means that the receiver accepted the event.
	delivered
	// refused means that the receiver refused this event individually and may accept it later.
	refused
	// hopeless means that the event is given up.
	hopeless
)

// fateOf returns the fate of the entry with index i. An event that is refused for longer than
// giveUpAfter is hopeless.
func (a *answer) fateOf(i int, giveUpAfter time.Duration) fate {
	if a.whole != nil {
		return fateOfAll(a.whole)
	}

	e := a.entries[i]
	refusal := a.events[i]
	switch {
	case refusal == nil:
		return delivered
	case errors.Is(refusal, core.ErrNotSent):
		return unsent
	case e.isOver(refusal, giveUpAfter, a.now):
		return hopeless
	default:
		return refused
	}
}

func fateOfAll(whole error) fate {
	switch {
	case errors.Is(whole, core.ErrTooLarge):
		return unread
	case core.IsPermanent(whole):
		return rejected
	default:
		return failed
	}
}
