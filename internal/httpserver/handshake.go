package httpserver

import (
	"io"
	"net"
	"sync/atomic"
	"time"
)

// handshake acquires slots of a fair queue for the work of one connection, and releases them while
// it waits for the other end. So a slow client occupies no slot.
//
// One goroutine at a time calls acquireSlot, and any goroutine calls releaseSlot.
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

// acquireSlot blocks until it has a slot, which it keeps until releaseSlot. It fails with
// [net.ErrClosed] when closed is closed first, and with [os.ErrDeadlineExceeded] when deadline
// passes. A nil channel and a zero deadline have no effect. It fails with [io.EOF] if the client
// closed the connection before the server answered. So even a large number of clients that give up
// and begin again costs no signatures.
func (h *handshake) acquireSlot(from net.Conn, closed <-chan struct{}, deadline *time.Time) error {
	select {
	case <-closed: // A connection that was cut does not queue.
		return net.ErrClosed
	default:
	}

	w := h.queue.requestSlot(h.origin, h.begun)
	h.begun = true
	err := w.awaitSlot(closed, deadline)
	if err == nil && !h.answered.Load() && departed(from) {
		err = io.EOF
	}
	if err != nil {
		w.leaveQueue()
		return err
	}

	// The slot is stored only now, because a concurrent Write (HTTP/2) must not release a slot that
	// was not granted.
	h.slot.Store(w)
	return nil
}

func (h *handshake) releaseSlot() {
	if w := h.slot.Swap(nil); w != nil {
		w.leaveQueue()
	}
}
