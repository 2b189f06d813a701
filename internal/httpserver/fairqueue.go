package httpserver

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// fairQueue grants slots round-robin by origin, so that one origin cannot starve the others. Slots
// alternate between work that continues and work that begins, while there is both. So a handshake
// that has begun ends soon, however many origins wait to begin one.
//
// It is safe for concurrent use, starts no goroutine, and takes constant time per call, except that
// a waiter that gives up is searched. It is mostly one of the first.
type fairQueue struct {
	mu    sync.Mutex
	free  int
	rings [kinds]ring
	// turn is the kind that has the next slot, unless nothing waits there.
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
	// order has the origins with waiters, that of the next grant first.
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

// request asks for a slot without blocking. continues means that origin's work has had a slot
// before. The caller must call done once, granted or not.
func (q *fairQueue) request(origin string, continues bool) *waiter {
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

func (w *waiter) done() {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()

	select {
	case <-w.granted:
		w.queue.grantNext()
	default:
		w.ring.drop(w)
	}
}

// grantNext alternates between the kinds of work. The caller must hold the lock.
func (q *fairQueue) grantNext() {
	for range kinds {
		next := q.rings[q.turn].next()
		q.turn = (q.turn + 1) % kinds
		if next != nil {
			close(next.granted)
			return
		}
	}
	q.free++
}

// next moves the origin to the end. It returns nil without waiters.
func (r *ring) next() *waiter {
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

// drop removes a waiter that gives up, and an origin without waiters.
func (r *ring) drop(w *waiter) {
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

// handshake acquires slots of a fair queue for the work of one connection, and releases them while
// it waits for the other end. So a slow client occupies no slot.
//
// acquire is called by one goroutine at a time, release by any.
type handshake struct {
	queue  *fairQueue
	origin string
	// begun means that the connection has had a slot before.
	begun bool
	// answered means that the server has written.
	answered atomic.Bool
	slot     atomic.Pointer[waiter]
	rest     int // bytes that may still arrive, used by Read only
}

// maxRead bounds one read, so that little of a body is read before its header is complete.
const maxRead = 4 << 10

var errHandshakeSize = errors.New("TLS handshake and first header are too large")

func (h *handshake) readWaiting(from net.Conn, b []byte) (int, error) {
	if h.rest <= 0 {
		return 0, errHandshakeSize
	}

	n, err := from.Read(b[:min(len(b), h.rest, maxRead)])
	h.rest -= n
	if alert := plainRefusal(b[:n]); alert != nil {
		return 0, alert
	}

	return n, err
}

// acquire blocks until it has a slot, which it keeps until release. It fails with [net.ErrClosed]
// when closed is closed first, and with [os.ErrDeadlineExceeded] when deadline passes; nil and zero
// are none. It fails with [io.EOF] if the client closed the connection before the server answered.
// So clients that give up and begin again, in large numbers, cost no signatures.
func (h *handshake) acquire(from net.Conn, closed <-chan struct{}, deadline *time.Time) error {
	select {
	case <-closed: // A connection that was cut does not queue.
		return net.ErrClosed
	default:
	}

	w := h.queue.request(h.origin, h.begun)
	h.begun = true
	err := w.wait(closed, deadline)
	if err == nil && !h.answered.Load() && departed(from) {
		err = io.EOF
	}
	if err != nil {
		w.done()
		return err
	}

	// It is stored only now, because a concurrent Write (HTTP/2) must not release a slot that was
	// not granted.
	h.slot.Store(w)
	return nil
}

func (h *handshake) release() {
	if w := h.slot.Swap(nil); w != nil {
		w.done()
	}
}

// wait blocks until the waiter has a slot. Its errors are those of acquire.
func (w *waiter) wait(closed <-chan struct{}, deadline *time.Time) error {
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
