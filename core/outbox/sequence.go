package outbox

import (
	"strconv"
	"time"
)

// numberEvent gives an event an ID, and its place in the sequence when it is sent for the first
// time.
func (l *lane) numberEvent(e *entry, now time.Time) {
	if e.Sequence == 0 {
		l.sequence++
		e.Sequence = l.sequence
	}

	e.sent = now
	e.ID = l.newID("", e.Sequence)
	if e.revision > 0 {
		e.ID += "-" + strconv.Itoa(e.revision)
	}
}

// newID differs for all events and heartbeats of this epoch. Managers are numbered apart.
func (l *lane) newID(kind string, number uint64) string {
	return l.idPrefix + kind + strconv.FormatUint(number, 10)
}

// arrived returns the highest number of the sequence that the receiver has seen, as far as this end
// knows. Numbers above it wait to be sent again.
func (l *lane) arrived() uint64 {
	arrived := l.sequence
	for _, e := range l.ready {
		if e.Sequence > 0 {
			arrived = min(arrived, e.Sequence-1)
		}
	}
	return arrived
}

// mayBeSeen reports whether the receiver may have seen a number that waits, because its answer was
// lost. A heartbeat that names a lower number would then look like a restart.
func (l *lane) mayBeSeen() bool {
	for _, e := range l.ready {
		if e.seen {
			return true
		}
	}
	return false
}
