package outbox

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// resendAt returns when an entry that was sent at a time is to be sent once more, and whether it is. A
// time that has passed when the entry was sent needs no resend.
func (o *Outbox) resendAt(e *entry, sent time.Time) (time.Time, bool) {
	delays := o.opts.Resend
	if e.Resync {
		delays = []time.Duration{o.opts.ResendResync}
	}

	for _, delay := range delays {
		if at := e.newest.Add(delay); delay > 0 && at.After(sent) {
			return at, true
		}
	}

	return time.Time{}, false
}

// resendResync schedules only the resend of a resync, for the resend of an event that is given up.
func (o *Outbox) resendResync(l *lane, now time.Time) {
	resync := core.WatchEvent{Resync: true, Time: now}
	if o.opts.ResyncOwners || o.opts.ResendResync <= 0 {
		o.resyncAll(l, now)

		return
	}

	e := l.entries[resync.Key()]
	if e == nil {
		e = &entry{Numbered: core.Numbered{WatchEvent: resync}}
		l.entries[resync.Key()] = e
		e.newest = now
		l.scheduleResend(e, now.Add(o.opts.ResendResync))
	}

	e.newest = now

	if e.next != nil {
		e.next.newest = now
	}
}

// resyncAll asks for a resync of the runtime, or of each known owner.
func (o *Outbox) resyncAll(l *lane, now time.Time) {
	if o.opts.ResyncOwners {
		o.resyncOwners(l, now)

		return
	}

	o.resync(l, types.NamespacedName{}, now)
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
