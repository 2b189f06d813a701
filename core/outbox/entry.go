package outbox

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// entry is one key of one manager. What arrives while its event waits or travels must not be merged into that event:
// the event may be sent before the newer write is committed. It waits beside it, as next, until it has settled, too.
type entry struct {
	event    core.WatchEvent
	accepted time.Time // when the oldest event that this one stands for was accepted
	due      time.Time
	again    time.Time // when the key wants a second look, unless it is sent later than that anyway; zero: none
	rests    bool      // was sent, and waits for its second look
	failures int
	alone    bool // was part of a refused batch: the next attempt shows whether it is to blame
	order    uint64
	position int // in its queue; -1 while the event travels

	next *waiting
}

type waiting struct {
	event    core.WatchEvent
	accepted time.Time
	due      time.Time
}

// merge takes the newer event in when it has settled, and reports whether there was one.
func (e *entry) merge(now time.Time) bool {
	if e.next == nil || e.next.due.After(now) {
		return false
	}

	// An event that was sent before keeps its number, so that the receiver sees no gap.
	id, epoch, sequence := e.event.ID, e.event.Epoch, e.event.Sequence
	e.event, e.next = e.next.event, nil
	e.event.ID, e.event.Epoch, e.event.Sequence = id, epoch, sequence

	return true
}

// advance puts the newer event in the place of the one that met its fate, and reports whether there was one.
func (e *entry) advance() bool {
	if e.next == nil {
		return false
	}

	*e = entry{event: e.next.event, accepted: e.next.accepted, due: e.next.due, again: e.again, order: e.order, position: e.position}

	return true
}

// queue is a heap of entries by due time (container/heap), and first come, first served: what is sent again comes out
// in the order in which it was numbered.
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
	e.position = len(*q)
	*q = append(*q, e)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	e.position = -1

	return e
}
