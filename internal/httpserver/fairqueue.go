package httpserver

import (
	"container/list"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// fairQueue grants slots round-robin by origin, so that one origin cannot starve the others. Slots
// alternate between work that continues and work that begins, while there is both. So a handshake
// that has begun ends soon, however many origins wait to begin one.
//
// It is safe for concurrent use, starts no goroutine, and takes constant time per call.
type fairQueue struct {
	mu sync.Mutex
	// free is the number of free slots. While it is not 0, there are no waiters.
	free int
	// rings has the waiters of each kind of work.
	rings [kinds]*ring
	// turn is the kind that has the next slot, unless nothing waits there.
	turn int
}

// The kinds of work: it continues, or it begins.
const (
	continuing = iota
	fresh
	kinds
)

// ring holds the origins with waiters of one kind.
type ring struct {
	origins map[string]*originQueue
	// next has the *originQueue with waiters, in the order of their next grants.
	next *list.List
}

// originQueue holds the waiters of one origin in a ring.
type originQueue struct {
	origin string
	ring   *ring
	// place is in ring.next.
	place *list.Element
	// waiters is a list of *waiter.
	waiters *list.List
}

// waiter is one request for a slot.
type waiter struct {
	queue *fairQueue
	// granted is closed when the waiter has a slot.
	granted chan struct{}

	// Guarded by queue.mu. place is nil unless it waits.
	in     *originQueue
	place  *list.Element
	isDone bool
}

func newFairQueue(slots int) *fairQueue {
	return &fairQueue{free: slots, rings: [kinds]*ring{newRing(), newRing()}}
}

func newRing() *ring { return &ring{origins: make(map[string]*originQueue), next: list.New()} }

// request asks for a slot without blocking. continues means that origin's work has had a slot
// before. The caller must call done, granted or not.
func (q *fairQueue) request(origin string, continues bool) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &waiter{queue: q, granted: make(chan struct{})}
	// There are no waiters while a slot is free.
	if q.free > 0 {
		q.free--
		close(w.granted)
		return w
	}
	kind := fresh
	if continues {
		kind = continuing
	}
	q.rings[kind].add(w, origin)
	return w
}

// done returns the slot, or stops waiting for one. Only the first call counts.
func (w *waiter) done() {
	q := w.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case w.isDone:
	case w.place != nil:
		w.unlist()
	default:
		q.grantNext()
	}
	w.isDone = true
}

// grantNext grants a free slot, of one kind of work and the other in turn. The caller must hold the
// lock, as for the functions below.
func (q *fairQueue) grantNext() {
	for range kinds {
		r := q.rings[q.turn]
		q.turn = (q.turn + 1) % kinds
		if r.next.Len() > 0 {
			r.grantNext()
			return
		}
	}
	q.free++
}

// grantNext grants a slot to the next origin, which is then the last. There must be one.
func (r *ring) grantNext() {
	first := r.next.Front()
	o, _ := first.Value.(*originQueue)
	w, _ := o.waiters.Front().Value.(*waiter)
	r.next.MoveToBack(first)
	w.unlist()
	close(w.granted)
}

// add adds the waiter to the end of the list of its origin. A new origin is last in the order.
func (r *ring) add(w *waiter, origin string) {
	o := r.origins[origin]
	if o == nil {
		o = &originQueue{origin: origin, ring: r, waiters: list.New()}
		o.place = r.next.PushBack(o)
		r.origins[origin] = o
	}
	w.in, w.place = o, o.waiters.PushBack(w)
}

// unlist also deletes an origin without waiters.
func (w *waiter) unlist() {
	o := w.in
	o.waiters.Remove(w.place)
	w.place = nil
	if o.waiters.Len() == 0 {
		o.ring.next.Remove(o.place)
		delete(o.ring.origins, o.origin)
	}
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

func (h *handshake) read(from net.Conn, b []byte) (int, error) {
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
// when closed is closed first, and with [os.ErrDeadlineExceeded] when deadline passes; nil and
// zero are none. It fails with [io.EOF] if the client closed the connection before the server
// answered. So clients that give up and begin again, in large numbers, cost no signatures.
func (h *handshake) acquire(from net.Conn, closed <-chan struct{}, deadline *time.Time) error {
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
	select {
	case <-w.granted:
		return nil
	default:
	}
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
