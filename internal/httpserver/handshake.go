package httpserver

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

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
// when closed is closed first, and with [os.ErrDeadlineExceeded] when deadline passes; zero is no
// deadline. It fails with [io.EOF] if the client closed the connection before the server answered.
// So clients that give up and begin again, in large numbers, cost no signatures.
func (h *handshake) acquire(from net.Conn, closed <-chan struct{}, deadline time.Time) error {
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
func (w *waiter) wait(closed <-chan struct{}, deadline time.Time) error {
	select {
	case <-w.granted:
		return nil
	default:
	}
	var late <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
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
