package outbox

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// resendAt returns when an entry that was sent at a time is to be sent once more, and whether it
// is. A time that has passed when the entry was sent needs no resend.
func (o *Outbox) resendAt(e *entry, sent time.Time) (at time.Time, again bool) {
	delays := o.opts.Resend
	if e.Resync {
		delays = []time.Duration{o.opts.ResendResync}
	}
	for _, delay := range delays {
		if at := e.newest.Add(delay); delay > 0 && at.After(sent) {
			return at, true
		}
	}
	return e.again, e.again.After(sent)
}

// resendResync schedules a resync instead of the resends of an event that is given up. It comes as
// late as the last resend of an event that is accepted now, so that one stands in for many.
func (o *Outbox) resendResync(l *lane, owner types.NamespacedName, now time.Time) {
	at := now.Add(slices.Max(o.opts.Resend))
	if e := o.resyncEntry(l, owner, at); e != nil {
		e.again = latest(e.again, at)
	}
}

// resendDue makes the due resends of a lane events.
func (o *Outbox) resendDue(l *lane, now time.Time) {
	if o.stopped {
		return
	}
	n := l.resendDue(now)
	l.counts.Accepted += n
	l.counts.Pending += n
}
