package outbox

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// keepEvent puts an event for which there is room into the store, and counts it.
func (l *lane) keepEvent(event core.WatchEvent, now time.Time) core.Outcome {
	e := l.entries.find(event.Key())
	if e != nil {
		e.coverOlder(&event)
	}

	outcome := l.putEvent(e, event, now, l.dueTime(&event, now))
	l.counts.Accepted++
	if outcome == core.Coalesced {
		l.counts.Coalesced++
	} else {
		l.counts.Pending++
	}
	return outcome
}

// dueTime is when a new event is due. Resyncs have a pace, because foreign input can cause them.
func (l *lane) dueTime(event *core.WatchEvent, now time.Time) time.Time {
	due := now.Add(l.settleTime(event))
	if event.Resync {
		due = l.resynced.dueTime(event.Owner, due)
	}
	return due
}

// settleTime returns how long an event waits before it is sent.
//
// A change source may see a write before its commit, and a reconcile that reads too early learns
// nothing. A receiver that checks the reads of its reconciles finds that out itself. It needs the
// UID for that.
func (l *lane) settleTime(event *core.WatchEvent) time.Duration {
	usual := max(l.opts.Settle, 0)
	if !l.receiverChecks || event.Resync || event.UID == "" {
		return usual
	}
	return min(usual, max(l.opts.SettleChecked, 0))
}
