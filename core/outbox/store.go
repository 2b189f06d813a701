package outbox

import (
	"cmp"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// totals are the sizes of the stores of all lanes. The lock of the lanes guards them.
type totals struct {
	keys  int // resyncs left out, resends included.
	bytes int // about the memory of the entries.
}

// store contains the entries of a lane: an entry is in the index, and in one queue unless it
// travels. [Outbox.Accept] and the goroutines of calls put entries in and free them, the dispatcher
// takes them from the queues. All hold the lock of the lane.
type store struct {
	entries index
	ready   queue // to be sent when due.
	refused queue // refused individually: sent again when due, a few at a time.
	resends queue // delivered, and sent once more when due: no events until then.

	keys  int    // entries that are no resyncs.
	bytes int    // about the memory of the entries.
	order uint64 // of the newest entry.
	total *totals

	wake chan struct{} // holds a token when there may be something to do.
	plan plan
}

func newStore(total *totals) store {
	return store{entries: newIndex(), total: total, wake: make(chan struct{}, 1)}
}

// putEvent keeps an event. If e, the entry of its key, is nil, the event gets an entry. Otherwise
// it becomes the event of the resend, waits next to the entry, or replaces an event that waits
// there.
func (s *store) putEvent(e *entry, event core.WatchEvent, now, due time.Time) core.Outcome {
	if e == nil {
		s.addEntry(&entry{Numbered: core.Numbered{WatchEvent: event}, accepted: now, newest: now, due: due})
		return core.Accepted
	}

	// The texts are kept once.
	event.Watched = e.Watched
	event.WatchedGVK = e.WatchedGVK
	event.Owner = e.Owner

	outcome := core.Accepted
	switch {
	case e.queue == &s.resends:
		e.WatchEvent = event
		e.newest = now
		s.reviveEntry(e, now, due)
	case e.next == nil:
		e.next = &waiting{event: event, accepted: now, newest: now, due: due}
	default:
		e.next.event = event
		e.next.newest = now
		e.next.due = due
		outcome = core.Coalesced
	}

	s.noteSize(e, e.size())
	return outcome
}

func (s *store) addEntry(e *entry) {
	s.order++
	e.order = s.order
	s.entries.addEntry(e)
	s.noteSize(e, e.size())

	if !e.Resync {
		s.keys++
		s.total.keys++
	}
	s.enqueueEntry(e)
}

// addResting keeps a resync that does not become an event before its time has come.
func (s *store) addResting(resync core.WatchEvent, at time.Time) *entry {
	e := &entry{Numbered: core.Numbered{WatchEvent: resync}}
	s.entries.addEntry(e)
	s.noteSize(e, e.size())
	s.restEntry(e, at, at)
	return e
}

// enqueueEntry makes an entry wait to be sent.
func (s *store) enqueueEntry(e *entry) {
	q := &s.ready
	if e.refusals > 0 {
		q = &s.refused
	}
	s.putInQueue(q, e)
}

// putInQueue puts an entry into a queue. It wakes the dispatcher if the plan comes too late for the
// entry, or if the entry fills a batch.
func (s *store) putInQueue(q *queue, e *entry) {
	q.addEntry(e)
	isMissed := e.position == 0 && s.plan.misses(e.due)
	isFull := len(s.ready)+len(s.refused) == s.plan.full // Once: at the entry that fills the batch.
	if isMissed || isFull {
		signal(s.wake)
	}
}

// reviveEntry makes a resting entry an event again, with a new number: it is due after all that was
// sent.
func (s *store) reviveEntry(e *entry, now, due time.Time) {
	s.resends.removeEntry(e)
	s.order++
	e.order = s.order
	e.accepted = now
	e.due = due
	e.early = 0
	s.enqueueEntry(e)
}

// restEntry makes a delivered entry wait for its resend, which will be another event. From a time
// on, the resend may travel with a call. It causes a call when it is due.
func (s *store) restEntry(e *entry, from, due time.Time) {
	// All other fields belong to the event that was delivered, and end with it.
	*e = entry{
		Numbered: core.Numbered{WatchEvent: e.WatchEvent}, newest: e.newest, again: e.again,
		due: due, early: due.Sub(from), bytes: e.bytes, collided: e.collided,
	}
	s.noteSize(e, e.size())
	s.putInQueue(&s.resends, e)
}

// sendAfter makes sure that a resync is sent after now, so that it replaces events that were
// accepted until newest. It reports whether the resync is sent at the given time for that.
// Otherwise the resync waits for an earlier time, or has not travelled yet.
func (s *store) sendAfter(e *entry, newest, at time.Time) (isScheduled bool) {
	e.newest = latest(e.newest, newest)
	if e.next != nil {
		e.next.newest = latest(e.next.newest, newest)
	}

	// With an ID, an earlier attempt may have arrived, and a transport drops the retry as a
	// duplicate.
	mayHaveArrived := e.queue == nil || e.ID != ""
	switch {
	case e.queue == &s.resends && !e.due.Before(at):
		s.resends.removeEntry(e)
		e.due = at
		e.early = 0
		s.putInQueue(&s.resends, e)
	case e.next == nil && mayHaveArrived:
		e.again = latest(e.again, at)
	default:
		return false
	}
	return true
}

// followNewer makes the newer event of an entry wait, and reports whether there is one.
func (s *store) followNewer(e *entry) (follows bool) {
	if e.next == nil {
		return false
	}
	e.promoteNewer()
	s.noteSize(e, e.size())
	s.enqueueEntry(e)
	return true
}

// forgetEntry frees an entry that waits.
func (s *store) forgetEntry(e *entry) {
	e.queue.removeEntry(e)
	s.freeEntry(e)
}

// freeEntry removes an entry that is in no queue.
func (s *store) freeEntry(e *entry) {
	s.entries.removeEntry(e)
	s.noteSize(e, 0)
	if !e.Resync {
		s.keys--
		s.total.keys--
	}
}

// noteSize keeps the size of an entry, 0 when it leaves.
func (s *store) noteSize(e *entry, size int) {
	s.bytes += size - e.bytes
	s.total.bytes += size - e.bytes
	e.bytes = size
}

// removeEntries ends the lane: Start has ended, or a new manager needs its place.
func (s *store) removeEntries() {
	s.total.keys -= s.keys
	s.total.bytes -= s.bytes
	s.keys = 0
	s.bytes = 0

	s.entries.clear()
	s.ready = nil
	s.refused = nil
	s.resends = nil
}

// retryRefused ends the waits of refused events.
func (s *store) retryRefused(now time.Time) {
	s.refused.makeDue(now)
	signal(s.wake)
}

func (s *store) lastWaiting() *entry { return cmp.Or(s.refused.lastChange(), s.ready.lastChange()) }

func (s *store) hasDue(now time.Time) bool { return s.ready.isDue(now) || s.refused.isDue(now) }

// fillsBatch reports whether the events that wait fill a batch.
func (s *store) fillsBatch() bool { return len(s.ready)+len(s.refused) >= s.plan.full }

// untilDue returns how long until the first entry is due, negative when none will be. A resend is
// overdue only when the outbox has stopped: nothing is waited for then.
func (s *store) untilDue(now time.Time) time.Duration {
	wait := time.Duration(-1)
	for _, q := range []queue{s.ready, s.refused, s.resends} {
		if len(q) == 0 {
			continue
		}

		next := q[0].due.Sub(now)
		if next > 0 {
			wait = soonest(wait, next)
		}
	}
	return wait
}

// oldestAge returns the age of the oldest event, and leaves out refused ones. Its cost grows with
// the number of pending events.
func (s *store) oldestAge(now time.Time) (age time.Duration) {
	for e := range s.entries.all() {
		if e.queue != &s.resends && e.refusals == 0 {
			age = max(age, now.Sub(e.accepted))
		}
	}
	return age
}

func signal(token chan struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}
