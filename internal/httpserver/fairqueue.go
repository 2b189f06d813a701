package httpserver

import (
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// fairQueue grants slots round-robin by origin, so that one origin cannot starve the others. Slots
// alternate between work that continues and work that begins, while there is both. So a handshake
// that has begun ends soon, however many origins wait to begin one.
//
// It is safe for concurrent use, starts no goroutine, and takes constant time per call, except for
// the search for a waiter that gives up. Such a waiter is mostly one of the first.
type fairQueue struct {
	mu    sync.Mutex
	free  int
	rings [kinds]ring
	// turn is the kind of work that gets the next slot, unless no work of this kind waits.
	turn int
}

// The kinds of work: it continues, or it begins.
const (
	continuing = iota
	fresh
	kinds
)

type ring struct {
	waiters map[string][]*waiter
	// order lists the origins with waiters. The origin of the next grant is first.
	order []string
}

type waiter struct {
	queue  *fairQueue
	origin string
	// ring is nil if there was a free slot.
	ring    *ring
	granted chan struct{}
}

func newFairQueue(slots int) *fairQueue {
	q := &fairQueue{free: slots}
	for kind := range q.rings {
		q.rings[kind].waiters = make(map[string][]*waiter)
	}
	return q
}

// requestSlot asks for a slot without blocking. continues means that origin's work has had a slot
// before. The caller must call leaveQueue once, granted or not.
func (q *fairQueue) requestSlot(origin string, continues bool) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()

	w := &waiter{queue: q, origin: origin, granted: make(chan struct{})}
	switch {
	case q.free > 0:
		q.free--
		close(w.granted)
		return w
	case continues:
		w.ring = &q.rings[continuing]
	default:
		w.ring = &q.rings[fresh]
	}

	if _, listed := w.ring.waiters[origin]; !listed {
		w.ring.order = append(w.ring.order, origin)
	}

	w.ring.waiters[origin] = append(w.ring.waiters[origin], w)
	return w
}

// leaveQueue returns the slot of the waiter, or ends its wait for one.
func (w *waiter) leaveQueue() {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()

	select {
	case <-w.granted:
		w.queue.grantNext()
	default:
		w.ring.dropWaiter(w)
	}
}

// grantNext alternates between the kinds of work. The caller must hold the lock.
func (q *fairQueue) grantNext() {
	for range kinds {
		next := q.rings[q.turn].takeNext()
		q.turn = (q.turn + 1) % kinds
		if next != nil {
			close(next.granted)
			return
		}
	}
	q.free++
}

// takeNext removes the next waiter, and moves its origin to the end. It returns nil without
// waiters.
func (r *ring) takeNext() *waiter {
	if len(r.order) == 0 {
		return nil
	}

	origin := r.order[0]
	waiting := r.waiters[origin]
	r.order = r.order[1:]

	if len(waiting) == 1 {
		delete(r.waiters, origin)
		return waiting[0]
	}

	r.waiters[origin] = waiting[1:]
	r.order = append(r.order, origin)
	return waiting[0]
}

// dropWaiter removes a waiter that gives up, and an origin without waiters.
func (r *ring) dropWaiter(w *waiter) {
	waiting := r.waiters[w.origin]
	if len(waiting) > 1 {
		i := slices.Index(waiting, w)
		r.waiters[w.origin] = slices.Delete(waiting, i, i+1)
		return
	}

	delete(r.waiters, w.origin)
	i := slices.Index(r.order, w.origin)
	r.order = slices.Delete(r.order, i, i+1)
}

// awaitSlot blocks until the waiter has a slot. It fails when closed is closed or deadline passes,
// with the errors of acquireSlot for these.
func (w *waiter) awaitSlot(closed <-chan struct{}, deadline *time.Time) error {
	var late <-chan time.Time
	if deadline != nil && !deadline.IsZero() {
		timer := time.NewTimer(time.Until(*deadline))
		defer timer.Stop()
		late = timer.C
	}

	select {
	case <-w.granted:
		return nil
	case <-closed:
		return net.ErrClosed
	case <-late:
		return os.ErrDeadlineExceeded
	}
}
