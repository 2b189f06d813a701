package outbox

import (
	"container/heap"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// lane holds the events of one manager. The outbox's lock guards it.
type lane struct {
	manager    core.Manager
	configured bool
	owners     []types.NamespacedName // named by events, where resyncs are for owners
	counts     Counts

	entries map[core.EventKey]*entry
	keys    int   // entries that are no resyncs
	ready   queue // to be sent when due
	refused queue // refused for themselves: sent again when due, a few at a time
	resends queue // delivered, and sent once more when due: no events until then

	inFlight int // calls of the forwarder
	failures int // of whole calls, in a row
	paused   time.Time
	resume   time.Time
	retried  time.Time // last call of Retry
	reached  bool      // has taken a batch
	unknown  bool      // has taken none, and the last answer was that the manager is not known

	order     uint64 // of the newest entry
	sequence  uint64 // of the newest event that was sent
	confirmed uint64 // of the newest event that was received, whatever its fate
	pulse     pulse
	logged    logged
	// pauseLogged is whether there was a line about the present pause.
	pauseLogged bool

	wake   chan struct{} // holds a token when there may be something to do
	closed chan struct{}
}

func newLane(manager core.Manager) *lane {
	return &lane{
		manager: manager,
		entries: make(map[core.EventKey]*entry),
		counts:  newCounts(),
		wake:    make(chan struct{}, 1),
		closed:  make(chan struct{}),
	}
}

// close ends the lane's dispatcher.
func (l *lane) close() { close(l.closed) }

// put keeps an event until it is due. It reports whether the key is new.
func (l *lane) put(event core.WatchEvent, now, due time.Time) (outcome core.Outcome, added bool) {
	e := l.entries[event.Key()]

	switch {
	case e == nil:
		l.add(&entry{Numbered: core.Numbered{WatchEvent: event}, accepted: now, newest: now, due: due})

		return core.Accepted, true
	case e.queue == &l.resends:
		e.WatchEvent, e.newest = event, now
		l.resend(e, now, due)
	case e.next == nil:
		e.next = &waiting{event: event, accepted: now, newest: now, due: due}
	default:
		e.next.event, e.next.newest, e.next.due = event, now, due

		return core.Coalesced, false
	}

	return core.Accepted, false
}

// add makes e an entry of its key, to be sent when due.
func (l *lane) add(e *entry) {
	l.order++
	e.order = l.order
	l.entries[e.Key()] = e
	l.enqueue(e)
}

// enqueue makes e wait until it is due.
func (l *lane) enqueue(e *entry) {
	q := &l.ready
	if e.refusals > 0 {
		q = &l.refused
	}

	q.add(e)

	if e.position == 0 {
		signal(l.wake)
	}
}

// resend makes an entry that waits for its resend an event again, accepted now. It gets a new number: it
// is due after everything that was sent before.
func (l *lane) resend(e *entry, now, due time.Time) {
	l.resends.remove(e)

	l.order++
	e.accepted, e.due, e.order = now, due, l.order
	l.enqueue(e)
}

// resendDue makes the due resends events, and returns their number.
func (l *lane) resendDue(now time.Time) (n int64) {
	for ; len(l.resends) > 0 && !l.resends[0].due.After(now); n++ {
		l.resend(l.resends[0], now, now)
	}

	return n
}

// scheduleResend makes a delivered entry wait for its resend, which will be an event of its own.
func (l *lane) scheduleResend(e *entry, due time.Time) {
	*e = entry{Numbered: core.Numbered{WatchEvent: e.WatchEvent}, newest: e.newest, due: due}
	l.resends.add(e)

	if e.position == 0 {
		signal(l.wake)
	}
}

// lastResend returns a change among the resends that is due late, nil if there is none.
func (l *lane) lastResend() *entry {
	for _, e := range slices.Backward(l.resends) {
		if !e.Resync {
			return e
		}
	}

	return nil
}

// lastWaiting returns a change that waits to be sent, nil if there is none.
func (l *lane) lastWaiting() *entry {
	for _, q := range []queue{l.refused, l.ready} {
		for _, e := range slices.Backward(q) {
			if !e.Resync {
				return e
			}
		}
	}

	return nil
}

// maxRefused bounds the events of a batch that were refused before, so that they do not hold up others.
const maxRefused = 50

// take removes up to limit events that are due, and reports whether a heartbeat is due, too. When there
// is nothing it returns how long to wait, negative for as long as nothing else happens.
func (l *lane) take(limit int, now time.Time) (batch []*entry, beat bool, wait time.Duration) {
	if l.failures > 0 {
		if l.inFlight > 0 {
			return nil, false, -1 // One attempt at a time finds out whether the manager is back.
		}

		if wait := l.resume.Sub(now); wait > 0 {
			return nil, false, wait
		}
	}

	batch = l.ready.takeDue(nil, limit, now)
	if len(batch) == 0 || !batch[0].alone {
		batch = l.refused.takeDue(batch, min(limit, len(batch)+maxRefused), now)
	}

	beat = l.pulse.due(now) && (len(batch) == 0 || !batch[0].alone)

	if len(batch) > 0 || beat {
		l.inFlight++

		return batch, beat, 0
	}

	return nil, false, l.wait(now)
}

// isUpToDate reports whether the receiver has seen every number, once it gets the batch.
func (l *lane) isUpToDate(batch []*entry) bool {
	seen := l.confirmed
	for _, e := range batch {
		seen = max(seen, e.Sequence)
	}

	return seen == l.sequence
}

// wait returns how long until something is due, negative when nothing is to come.
func (l *lane) wait(now time.Time) time.Duration {
	wait := l.pulse.wait(now)

	for _, q := range []queue{l.ready, l.refused, l.resends} {
		if len(q) == 0 {
			continue
		}

		// A resend is overdue only when the outbox has stopped: nothing is waited for then.
		if next := q[0].due.Sub(now); next > 0 && (wait < 0 || next < wait) {
			wait = next
		}
	}

	return wait
}

// retry ends every wait after a failure. Events that have not settled wait on.
func (l *lane) retry(now time.Time) {
	l.resume, l.retried = now, now

	for _, e := range l.refused {
		if e.due.After(now) {
			e.due = now
		}
	}

	heap.Init(&l.refused)
	signal(l.wake)
}

// oldest returns the age of the oldest event that is not refused for itself. Its cost grows with the
// number of pending events.
func (l *lane) oldest(now time.Time) (age time.Duration) {
	for _, e := range l.entries {
		if e.queue != &l.resends && e.refusals == 0 {
			age = max(age, now.Sub(e.accepted))
		}
	}

	return age
}

// addOwner notes an owner for resyncs, and reports whether it is new.
func (l *lane) addOwner(owner types.NamespacedName) bool {
	if owner == (types.NamespacedName{}) || len(l.owners) >= MaxOwners || slices.Contains(l.owners, owner) {
		return false
	}

	l.owners = append(l.owners, owner)

	return true
}

// removeOwner ends the resyncs for an owner that the control plane refuses.
func (l *lane) removeOwner(owner types.NamespacedName) {
	l.owners = slices.DeleteFunc(l.owners, func(known types.NamespacedName) bool { return known == owner })
}
