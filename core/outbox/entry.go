package outbox

import (
	"container/heap"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// entry is one key of one manager. An event that arrives while another one of its key waits or
// travels is not merged immediately. The waiting one may be sent before the newer write is
// committed. The newer event stays next to it as next until it has also settled.
//
// An entry belongs to the store of a lane, and the lock of the lane guards it. While it travels, it
// is in no queue, and its call only remembers it.
type entry struct {
	core.Numbered

	revision int       // IDs before this one, with the same number.
	sent     time.Time // first, with this ID.

	accepted time.Time // of the oldest event that this one replaces.
	newest   time.Time // acceptance of the newest one, from which resends count.
	again    time.Time // the key is to be sent at this time or later.
	due      time.Time
	early    time.Duration // before due, from when on a resend may travel with a call.

	alone    bool      // part of a batch that was refused as a whole: the next attempt is without others.
	seen     bool      // an attempt failed, and not as too large: its number may have arrived.
	refusals uint32    // of this event alone, in a row. Small, because there are many entries.
	refused  time.Time // the first of them.

	order    uint64
	bytes    int    // its size, as the store counts it.
	queue    *queue // nil while the event travels.
	position int    // in queue.
	collided *entry // the next one in the index, with another key of the same hash.

	next *waiting
}

// waiting is the newer event of a key, which has not settled yet.
type waiting struct {
	event    core.WatchEvent
	accepted time.Time // of the oldest event that this one replaces.
	newest   time.Time // acceptance of the newest one.
	due      time.Time
}

// mergeNewer takes the newer event in if it has settled, and reports whether it did. The
// merged event keeps its number, so that the receiver sees no gap.
func (e *entry) mergeNewer(now time.Time) bool {
	if e.next == nil || e.next.due.After(now) {
		return false
	}

	e.WatchEvent = e.next.event
	e.newest = e.next.newest
	e.next = nil
	e.renewID()
	return true
}

// renewID gives an event that says something new another ID, so that no transport drops it as a
// duplicate.
func (e *entry) renewID() {
	if e.ID != "" {
		e.revision++
		e.ID = ""
	}
}

// promoteNewer makes the newer event the event of the entry.
func (e *entry) promoteNewer() {
	n := e.next
	*e = entry{
		Numbered: core.Numbered{WatchEvent: n.event},
		accepted: n.accepted, newest: n.newest, again: e.again, due: n.due, order: e.order,
		bytes: e.bytes, collided: e.collided,
	}
}

// coverOlder makes UID and Base of the newer event of a key cover the newest one before it, too.
func (e *entry) coverOlder(newer *core.WatchEvent) {
	older := &e.WatchEvent
	if e.next != nil {
		older = &e.next.event
	}

	newer.Base = max(newer.Base, older.Base)
	if newer.UID != older.UID {
		newer.UID = ""
		newer.Base = 0
	}
}

// isOver reports whether a refused event is to be given up. A resync of the runtime never is,
// because nothing would replace it. A resync for an owner is, after a permanent error.
func (e *entry) isOver(refusal error, limit time.Duration, now time.Time) bool {
	if core.IsPermanent(refusal) {
		return !e.Resync || e.Owner != (types.NamespacedName{})
	}
	return !e.Resync && e.refusals > 0 && now.Sub(e.refused) >= limit
}

func (e *entry) events() int64 {
	if e.next == nil {
		return 1
	}
	return 2
}

const (
	// entrySize is the memory of an entry without its texts: the struct, its place in the index and
	// in a queue, and the ID that it gets.
	entrySize = 576
	// waitingSize is the memory of a newer event that waits next to an entry.
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

// sizeBeside returns how much more memory an event takes, where e is the entry of its key or nil.
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

// ownTexts counts the texts that the events of one key do not share.
func ownTexts(event *core.WatchEvent) int { return len(event.UID) + len(event.TraceParent) }

// queue is a heap of entries by due time, then by order (container/heap). Events that are sent
// again come out in the order of their numbers. Of resends that are due together, those that may
// travel first come first.
type queue []*entry

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	switch {
	case !q[i].due.Equal(q[j].due):
		return q[i].due.Before(q[j].due)
	case q[i].early != q[j].early:
		return q[i].early > q[j].early
	default:
		return q[i].order < q[j].order
	}
}

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].position = i
	q[j].position = j
}

func (q *queue) Push(x any) {
	e, _ := x.(*entry)
	e.queue = q
	e.position = len(*q)
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

func (q *queue) addEntry(e *entry) { heap.Push(q, e) }

func (q *queue) removeEntry(e *entry) { heap.Remove(q, e.position) }

func (q *queue) lastChange() *entry {
	for _, e := range slices.Backward(*q) {
		if !e.Resync {
			return e
		}
	}
	return nil
}

// mayTravel reports whether the first resend may travel with a call.
func (q *queue) mayTravel(now time.Time) bool {
	return len(*q) > 0 && !(*q)[0].due.Add(-(*q)[0].early).After(now)
}

func (q *queue) isDue(now time.Time) bool { return len(*q) > 0 && !(*q)[0].due.After(now) }

func (q *queue) isAlone(now time.Time) bool { return q.isDue(now) && (*q)[0].alone }

// takeDue moves due entries to batch, until that has limit of them. An entry that travels alone is
// a batch by itself.
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

// makeDue makes all entries due now at the latest.
func (q *queue) makeDue(now time.Time) {
	for _, e := range *q {
		if e.due.After(now) {
			e.due = now
		}
	}
	heap.Init(q)
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func isAlone(batch []*entry) bool { return len(batch) > 0 && batch[0].alone }
