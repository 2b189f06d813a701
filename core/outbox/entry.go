package outbox

import (
	"container/heap"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// entry is one key of one manager. An event that arrives while another one of its key waits or
// travels is not merged at once. The waiting one may be sent before the newer write is committed.
// The newer one stays beside it as next until it has settled, too.
type entry struct {
	core.Numbered

	revision int       // IDs before this one, with the same number.
	sent     time.Time // first, with this ID.
	accepted time.Time // of the oldest event that this one stands for.
	newest   time.Time // acceptance of the newest one, from which resends count.
	again    time.Time // the key is to be sent at this time or later.
	due      time.Time
	alone    bool      // part of a batch that was refused as a whole: the next attempt is without others.
	seen     bool      // an attempt failed, and not as too large: its number may have arrived.
	refusals uint32    // of this event alone, in a row. Small, because there are many entries.
	refused  time.Time // the first of them.
	order    uint64
	bytes    int    // its size, as the lane counts it.
	queue    *queue // nil while the event travels.
	position int    // in queue.
	collided *entry // the next one in the index, with another key of the same hash.

	next *waiting
}

type waiting struct {
	event            core.WatchEvent
	accepted, newest time.Time
	due              time.Time
}

// merge takes the newer event in when that has settled, and reports whether there was one. The
// merged event keeps its number, so that the receiver sees no gap.
func (e *entry) merge(now time.Time) bool {
	if e.next == nil || e.next.due.After(now) {
		return false
	}
	e.WatchEvent, e.newest, e.next = e.next.event, e.next.newest, nil
	e.renew()
	return true
}

// renew gives an event that says something new another ID, so that no transport drops it as a
// duplicate.
func (e *entry) renew() {
	if e.ID != "" {
		e.revision++
		e.ID = ""
	}
}

func (e *entry) replace() {
	n := e.next
	*e = entry{
		Numbered: core.Numbered{WatchEvent: n.event},
		accepted: n.accepted, newest: n.newest, again: e.again, due: n.due, order: e.order,
		bytes: e.bytes, collided: e.collided,
	}
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// extend makes UID and Base of the newer event of a key cover the newest one before it, too.
func (e *entry) extend(newer *core.WatchEvent) {
	older := &e.WatchEvent
	if e.next != nil {
		older = &e.next.event
	}
	if newer.Base = max(newer.Base, older.Base); newer.UID != older.UID {
		newer.UID, newer.Base = "", 0
	}
}

func (e *entry) events() int64 {
	if e.next == nil {
		return 1
	}
	return 2
}

// queue is a heap of entries by due time, then by order (container/heap). Events that are sent
// again come out in the order of their numbers.
type queue []*entry

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	if q[i].due.Equal(q[j].due) {
		return q[i].order < q[j].order
	}
	return q[i].due.Before(q[j].due)
}

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].position, q[j].position = i, j
}

func (q *queue) Push(x any) {
	e, _ := x.(*entry)
	e.queue, e.position = q, len(*q)
	*q = append(*q, e)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	e.queue = nil
	return e
}

func (q *queue) add(e *entry) { heap.Push(q, e) }

func (q *queue) remove(e *entry) { heap.Remove(q, e.position) }

func (q *queue) lastChange() *entry {
	for _, e := range slices.Backward(*q) {
		if !e.Resync {
			return e
		}
	}
	return nil
}

func (q *queue) isDue(now time.Time) bool { return len(*q) > 0 && !(*q)[0].due.After(now) }

func (q *queue) isAlone(now time.Time) bool { return q.isDue(now) && (*q)[0].alone }

func (q *queue) takeDue(batch []*entry, limit int, now time.Time) []*entry {
	for len(batch) < limit && q.isDue(now) {
		if (*q)[0].alone && len(batch) > 0 {
			return batch
		}
		e, _ := heap.Pop(q).(*entry)
		batch = append(batch, e)
		if e.alone {
			return batch
		}
	}
	return batch
}
