package httpserver

import (
	"container/list"
	"sync"
)

// fairQueue grants slots round-robin by origin, so that one origin cannot starve the others. Within
// an origin, work that continues comes before work that begins, so that handshakes end in time.
//
// It is safe for concurrent use, starts no goroutine, and takes constant time per call.
type fairQueue struct {
	mu sync.Mutex
	// free is the number of free slots. While it is not 0, there are no waiters.
	free    int
	origins map[string]*originQueue
	// next has the *originQueue with waiters, in the order of their next grants.
	next *list.List
}

// originQueue holds the waiters of one origin.
type originQueue struct {
	origin string
	// place is in fairQueue.next.
	place *list.Element
	// continuing and fresh are lists of *waiter.
	continuing, fresh *list.List
}

// waiter is one request for a slot.
type waiter struct {
	queue *fairQueue
	// granted is closed when the waiter has a slot.
	granted chan struct{}

	// Guarded by queue.mu.
	state waiterState
	in    *originQueue
	list  *list.List
	place *list.Element
}

// waiterState is the state of a waiter: first waiting, at last done.
type waiterState int

const (
	waiting waiterState = iota
	granted
	done
)

// newFairQueue returns a queue with that many slots, which must be positive.
func newFairQueue(slots int) *fairQueue {
	return &fairQueue{free: slots, origins: make(map[string]*originQueue), next: list.New()}
}

// request asks for a slot without blocking. continues means that origin's work has had a slot
// before. The caller must call done, granted or not.
func (q *fairQueue) request(origin string, continues bool) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &waiter{queue: q, granted: make(chan struct{})}

	// There are no waiters while a slot is free.
	if q.free > 0 {
		q.free--
		w.grant()
		return w
	}
	w.enlist(q.of(origin), continues)
	return w
}

// done returns the slot, or stops waiting for one. Only the first call counts.
func (w *waiter) done() {
	q := w.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	switch w.state {
	case waiting:
		w.unlist()
	case granted:
		q.grantNext()
	case done:
	}
	w.state = done
}

// grantNext grants a free slot to the next origin, which is then the last. The caller must hold the
// lock, as for the functions below.
func (q *fairQueue) grantNext() {
	first := q.next.Front()
	if first == nil {
		q.free++
		return
	}
	o, _ := first.Value.(*originQueue)
	w := o.first()
	q.next.MoveToBack(first)
	w.unlist()
	w.grant()
}

// grant wakes the waiter.
func (w *waiter) grant() {
	w.state = granted
	close(w.granted)
}

// enlist adds the waiter to the end of a list of its origin.
func (w *waiter) enlist(o *originQueue, continues bool) {
	w.in, w.list = o, o.fresh
	if continues {
		w.list = o.continuing
	}
	w.place = w.list.PushBack(w)
}

// unlist also deletes an origin without waiters.
func (w *waiter) unlist() {
	o, q := w.in, w.queue
	w.list.Remove(w.place)
	if o.continuing.Len() == 0 && o.fresh.Len() == 0 {
		q.next.Remove(o.place)
		delete(q.origins, o.origin)
	}
}

// of returns the queue of an origin. A new one is last in the order.
func (q *fairQueue) of(origin string) *originQueue {
	o := q.origins[origin]
	if o == nil {
		o = &originQueue{origin: origin, continuing: list.New(), fresh: list.New()}
		o.place = q.next.PushBack(o)
		q.origins[origin] = o
	}
	return o
}

// first returns the next waiter of an origin, which must have one.
func (o *originQueue) first() *waiter {
	e := o.continuing.Front()
	if e == nil {
		e = o.fresh.Front()
	}
	w, _ := e.Value.(*waiter)
	return w
}
