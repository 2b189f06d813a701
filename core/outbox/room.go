package outbox

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// hasRoom reports whether an event may be kept. A new key beyond MaxKeys takes the place of a
// resend, or of an event of the manager that has the most keys.
func (o *Outbox) hasRoom(l *lane, event *core.WatchEvent, now time.Time) bool {
	switch {
	case event.Resync:
		return l.takesResync(event.Key())
	case l.entries[event.Key()] != nil, o.allKeys < o.opts.MaxKeys:
		return true
	default:
		return o.giveUpResend(l, now) || o.giveUpEvent(l, now)
	}
}

// giveUpResend schedules a resync in place of the resend, at the same time.
func (o *Outbox) giveUpResend(l *lane, now time.Time) bool {
	hog := o.largest(func(other *lane) bool {
		return (other == l || other.keys > l.keys) && other.resends.lastChange() != nil
	})
	if hog == nil {
		return false
	}
	e := hog.resends.lastChange()
	hog.forget(e)
	hog.resendResync(e.Owner, now)
	return true
}

func (o *Outbox) giveUpEvent(l *lane, now time.Time) bool {
	hog := o.largest(func(other *lane) bool { return other.keys > l.keys+1 && other.lastWaiting() != nil })
	if hog == nil {
		return false
	}
	e := hog.lastWaiting()
	hog.forget(e)
	hog.counts.giveUp(e.events(), reasonOverflow)
	hog.noteOverflow(now)
	hog.resync(e.Owner, now)
	return true
}

func (o *Outbox) largest(match func(*lane) bool) (most *lane) {
	for _, l := range o.lanes {
		if (most == nil || l.keys > most.keys) && match(l) {
			most = l
		}
	}
	return most
}

func (l *lane) forget(e *entry) {
	e.queue.remove(e)
	l.free(e)
}

func (l *lane) free(e *entry) {
	delete(l.entries, e.Key())
	if !e.Resync {
		l.keys--
		l.allKeys--
	}
}

// dueTime gives resyncs a pace: foreign input can cause them.
func (l *lane) dueTime(event *core.WatchEvent, now time.Time) time.Time {
	due := now.Add(max(l.opts.Settle, 0))
	last, again := l.resynced[event.Owner]
	if next := last.Add(resyncInterval); again && event.Resync && next.After(due) {
		return next
	}
	return due
}

func (l *lane) keep(event core.WatchEvent, now time.Time) core.Outcome {
	due := l.dueTime(&event, now)
	outcome, added := l.put(event, now, due)
	if added && !event.Resync {
		l.keys++
		l.allKeys++
	}
	l.counts.Accepted++
	if outcome == core.Coalesced {
		l.counts.Coalesced++
	} else {
		l.counts.Pending++
	}
	return outcome
}
