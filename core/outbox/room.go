package outbox

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// makeRoom reports whether an event may be kept. Beyond MaxKeys or MaxBytes, the event takes the
// place of resends, or of events of the manager that has the most keys or bytes.
func (s *lanes) makeRoom(l *lane, event *core.WatchEvent, now time.Time) bool {
	if event.Resync {
		return l.hasRoomForResync(event.Key())
	}

	// An event that joins an entry of its key takes less, so that usually no lookup is needed.
	hasBytes := s.totals.bytes+sizeBeside(nil, event) <= s.opts.MaxBytes
	if hasBytes && s.totals.keys < s.opts.MaxKeys {
		return true
	}

	for {
		// An entry that gave way may have been the one of this key.
		e := l.entries.find(event.Key())
		need := sizeBeside(e, event)

		var most share
		switch {
		case need > s.opts.MaxBytes:
			return false
		case s.totals.bytes+need > s.opts.MaxBytes:
			most = share{of: func(l *lane) int { return l.bytes }, more: need}
		case e == nil && s.totals.keys >= s.opts.MaxKeys:
			most = share{of: func(l *lane) int { return l.keys }, more: 1}
		default:
			return true
		}

		if !s.giveUpResend(l, most, now) && !s.giveUpEvent(l, most, now) {
			return false
		}
	}
}

// giveUpResend schedules a resync in place of the resend, at the same time.
func (s *lanes) giveUpResend(l *lane, most share, now time.Time) bool {
	hog := s.largest(most, func(other *lane) bool {
		isLarger := other == l || most.of(other) > most.of(l)
		return isLarger && other.resends.lastChange() != nil
	})
	if hog == nil {
		return false
	}

	e := hog.resends.lastChange()
	hog.forgetEntry(e)
	hog.replaceResends(e.Owner, now)
	return true
}

// giveUpEvent drops an event of a manager that keeps more than the other would with its new event.
// A resync replaces it.
func (s *lanes) giveUpEvent(l *lane, most share, now time.Time) bool {
	hog := s.largest(most, func(other *lane) bool {
		return most.of(other) > most.of(l)+most.more && other.lastWaiting() != nil
	})
	if hog == nil {
		return false
	}

	e := hog.lastWaiting()
	hog.forgetEntry(e)
	hog.counts.giveUpEvents(e.events(), ReasonOverflow)
	hog.noteOverflow(now)
	hog.keepResync(e.Owner, now)
	return true
}
