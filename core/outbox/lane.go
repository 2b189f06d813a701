package outbox

import (
	"container/heap"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// lane holds what waits for one manager. The outbox's lock guards it.
type lane struct {
	manager core.Manager
	entries map[core.EventKey]*entry
	queue   queue
	resyncs int                    // entries, those that rest included
	owners  []types.NamespacedName // that events have named, where resyncs are for owners
	counts  Counts
	wake    chan struct{} // holds a token when there may be something to do

	changeLooks, resyncLooks queue // entries that rest, due when they are looked at again

	inFlight int // calls of the forwarder
	failures int // of whole calls, in a row
	resume   time.Time
	retried  time.Time // when Retry was last called

	order     uint64 // of the newest entry
	sequence  uint64 // of the newest event that was sent
	confirmed uint64 // of the newest event that was received, whatever became of it
	pulse     pulse
}

func newLane(manager core.Manager) *lane {
	return &lane{
		manager: manager,
		entries: make(map[core.EventKey]*entry),
		counts:  Counts{Dropped: make(map[string]int64)},
		wake:    make(chan struct{}, 1),
	}
}

// stir lets the lane's dispatcher look again.
func (l *lane) stir() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// put keeps an event that wants a second look at again, and reports whether a waiting one stands for it from now on.
func (l *lane) put(event core.WatchEvent, now, due, again time.Time) (coalesced bool) {
	key := event.Key()

	e := l.entries[key]
	switch {
	case e == nil:
		l.order++
		e = &entry{event: event, accepted: now, due: due, order: l.order}
		l.entries[key] = e
		l.enqueue(e)

		if key.Kind == core.KindResync {
			l.resyncs++
		}
	case e.rests:
		e.event = event
		l.rouse(e, now, due)
	case e.next == nil:
		e.next = &waiting{event: event, accepted: now, due: due}
	default:
		e.next.event, e.next.due = event, due
		coalesced = true
	}

	e.again = later(e.again, again)

	return coalesced
}

func (l *lane) enqueue(e *entry) {
	heap.Push(&l.queue, e)

	if e.position == 0 {
		l.stir()
	}
}

// take removes up to limit events that are due from the queue, and reports whether a heartbeat is due, too. When there
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

	batch = l.takeEvents(limit, now)
	beat = l.pulse.due(now) && (len(batch) == 0 || !batch[0].alone)

	if len(batch) > 0 || beat {
		l.inFlight++

		return batch, beat, 0
	}

	return nil, false, l.wait(now)
}

func (l *lane) takeEvents(limit int, now time.Time) (batch []*entry) {
	for len(batch) < limit && len(l.queue) > 0 && !l.queue[0].due.After(now) {
		if l.queue[0].alone && len(batch) > 0 {
			break
		}

		e, _ := heap.Pop(&l.queue).(*entry)
		batch = append(batch, e)

		if e.alone {
			break
		}
	}

	return batch
}

// upToDate reports whether the receiver has seen every number, once it gets the batch.
func (l *lane) upToDate(batch []*entry) bool {
	seen := l.confirmed
	for _, e := range batch {
		seen = max(seen, e.event.Sequence)
	}

	return seen == l.sequence
}

// wait returns how long until something is due, negative when nothing is to come.
func (l *lane) wait(now time.Time) time.Duration {
	wait := l.pulse.wait(now)

	for _, q := range []queue{l.queue, l.changeLooks, l.resyncLooks} {
		if len(q) == 0 {
			continue
		}

		// What rests is overdue only when the outbox has stopped: nothing is waited for then.
		if next := q[0].due.Sub(now); next > 0 && (wait < 0 || next < wait) {
			wait = next
		}
	}

	return wait
}

// done removes the event of e, which met its fate, and lets the next one of its key follow, or else its second look if there is to be one.
// It reports whether the key is free.
func (l *lane) done(e *entry, again bool) (free bool) {
	key := e.event.Key()

	if e.advance() {
		l.enqueue(e)

		return false
	}

	if again {
		l.rest(e)

		return false
	}

	delete(l.entries, key)

	if key.Kind == core.KindResync {
		l.resyncs--
	}

	return true
}

// again puts e back to be sent at due.
func (l *lane) again(e *entry, due time.Time) {
	e.due = due
	l.enqueue(e)
}

// retry ends every wait after a failure. Events that have not settled wait on.
func (l *lane) retry(now time.Time) {
	l.resume, l.retried = now, now

	for _, e := range l.queue {
		if e.failures > 0 && e.due.After(now) {
			e.due = now
		}
	}

	heap.Init(&l.queue)
	l.stir()
}

// split sorts the answer to one call by what it means for each event.
func split(err error, n int) (events core.EventErrors, whole error) {
	var partial core.EventErrors
	if err == nil || errors.As(err, &partial) {
		return partial, nil
	}

	if n <= 1 && core.IsPermanent(err) {
		return core.EventErrors{0: err}, nil
	}

	return nil, err
}
