package outbox

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// resendAt reports false if the time had passed when the entry was sent.
func (o Options) resendAt(e *entry, sent time.Time) (at time.Time, again bool) {
	delays := o.Resend
	if e.Resync {
		delays = []time.Duration{o.ResendResync}
	}
	for _, delay := range delays {
		if at := e.newest.Add(delay); delay > 0 && at.After(sent) {
			return at, true
		}
	}
	return e.again, e.again.After(sent)
}

// lastResend is when an event that is accepted now is sent for the last time at the latest.
func (o Options) lastResend(now time.Time) time.Time {
	delay := max(o.Settle, 0)
	for _, later := range o.Resend {
		delay = max(delay, later)
	}
	return now.Add(delay)
}

// resendResync schedules a resync instead of the resends of an event that is given up. It comes as
// late as the last resend of an event that is accepted now, so that one stands in for many.
func (l *lane) resendResync(owner types.NamespacedName, now time.Time) {
	at := l.opts.lastResend(now)
	if e := l.resyncEntry(owner, at); e != nil {
		e.again = latest(e.again, at)
	}
}

// onGrid returns the next whole step of ResendEvery, so that the resends of one step travel
// together. Without it, each would be due at a moment of its own, and cost a request of its own.
func (l *lane) onGrid(due time.Time) time.Time {
	step := l.opts.ResendEvery
	if step <= 0 {
		return due
	}
	late := due.Sub(l.grid) % step
	if late <= 0 {
		return due
	}
	return due.Add(step - late)
}

// resendDue makes the due resends events. There are none after the last heartbeat.
func (l *lane) resendDue(now time.Time) {
	for l.pulse.leaving == stays && l.resends.isDue(now) {
		l.resend(l.resends[0], now, now)
		l.counts.Accepted++
		l.counts.Pending++
	}
}
