package outbox

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// makeRoom reports whether an event may be kept. Beyond MaxKeys or MaxBytes, the event takes the
// place of resends, or of events of the manager that has the most keys or bytes.
func (o *Outbox) makeRoom(l *lane, event *core.WatchEvent, now time.Time) bool {
	if event.Resync {
		return l.takesResync(event.Key())
	}

	for {
		// An entry that gave way may have been the one of this key.
		e := l.entries.find(event.Key())
		need := sizeBeside(e, event)

		var most share
		switch {
		case need > o.opts.MaxBytes:
			return false
		case o.allBytes+need > o.opts.MaxBytes:
			most = share{of: func(l *lane) int { return l.bytes }, more: need}
		case e == nil && o.allKeys >= o.opts.MaxKeys:
			most = share{of: func(l *lane) int { return l.keys }, more: 1}
		default:
			return true
		}

		if !o.giveUpResend(l, most, now) && !o.giveUpEvent(l, most, now) {
			return false
		}
	}
}

// share is the part of a bound that lanes have, and the part that an event needs.
type share struct {
	of   func(*lane) int
	more int
}

// giveUpResend schedules a resync in place of the resend, at the same time.
func (o *Outbox) giveUpResend(l *lane, most share, now time.Time) bool {
	hog := o.largest(most, func(other *lane) bool {
		return (other == l || most.of(other) > most.of(l)) && other.resends.lastChange() != nil
	})
	if hog == nil {
		return false
	}
	e := hog.resends.lastChange()
	hog.forget(e)
	hog.resendResync(e.Owner, now)
	return true
}

func (o *Outbox) giveUpEvent(l *lane, most share, now time.Time) bool {
	hog := o.largest(most, func(other *lane) bool {
		return most.of(other) > most.of(l)+most.more && other.lastWaiting() != nil
	})
	if hog == nil {
		return false
	}
	e := hog.lastWaiting()
	hog.forget(e)
	hog.counts.giveUp(e.events(), ReasonOverflow)
	hog.noteOverflow(now)
	hog.resync(e.Owner, now)
	return true
}

func (o *Outbox) largest(by share, match func(*lane) bool) (most *lane) {
	for _, l := range o.lanes {
		if (most == nil || by.of(l) > by.of(most)) && match(l) {
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
	l.entries.remove(e)
	l.noteSize(e, 0)
	if !e.Resync {
		l.keys--
		l.allKeys--
	}
}

const (
	// entrySize is the memory of an entry without its texts: the struct, its place in the index and
	// in a queue, and the ID that it gets.
	entrySize = 576
	// waitingSize is the memory of a newer event beside an entry.
	waitingSize = 320
)

// size is about the memory that the entry takes, in bytes.
func (e *entry) size() int {
	n := entrySize + len(e.Watched.Namespace) + len(e.Watched.Name) + len(e.Owner.Namespace) + len(e.Owner.Name) +
		len(e.WatchedGVK.Group) + len(e.WatchedGVK.Version) + len(e.WatchedGVK.Kind) + ownTexts(&e.WatchEvent)
	if e.next != nil {
		n += waitingSize + ownTexts(&e.next.event)
	}
	return n
}

// ownTexts counts the texts that the events of one key do not share.
func ownTexts(event *core.WatchEvent) int { return len(event.UID) + len(event.TraceParent) }

// sizeBeside returns how much more memory an event takes, e being the entry of its key, if there is
// one.
func sizeBeside(e *entry, event *core.WatchEvent) int {
	switch {
	case e == nil:
		return (&entry{Numbered: core.Numbered{WatchEvent: *event}}).size()
	case e.next != nil:
		return max(ownTexts(event)-ownTexts(&e.next.event), 0)
	default:
		return waitingSize + ownTexts(event) // A resend takes less.
	}
}

// noteSize keeps the size of an entry, 0 when it leaves.
func (l *lane) noteSize(e *entry, size int) {
	l.bytes += size - e.bytes
	l.allBytes += size - e.bytes
	e.bytes = size
}

// dueTime gives resyncs a pace: foreign input can cause them.
func (l *lane) dueTime(event *core.WatchEvent, now time.Time) time.Time {
	due := now.Add(l.settle(event))
	last, again := l.resynced[event.Owner]
	if next := last.Add(resyncInterval); again && event.Resync && next.After(due) {
		return next
	}
	return due
}

func (l *lane) keep(event core.WatchEvent, now time.Time) core.Outcome {
	if e := l.entries.find(event.Key()); e != nil {
		e.extend(&event)
	}
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
