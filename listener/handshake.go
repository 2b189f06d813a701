package listener

import (
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/crowd"
)

// handshake bounds what a connection costs before its first request: TLS is dear, and nobody is known yet.
//
// A connection computes from a Read that returns something to the next Read or Write, and only has a turn for that
// time: one that waits for the other end holds up nobody, however slow that is. TLS gathers what it has computed and writes it
// at the end, so there is next to nothing to do between a Write and the Read that follows.
type handshake struct {
	turns  *crowd.Turns
	origin string
	// until is when the server gives up: nobody computes for who is late already.
	until time.Time
	begun bool
	turn  atomic.Pointer[crowd.Turn]
}

// defaultHandshakes leaves half of the processors to those who are connected.
func defaultHandshakes() int { return max(runtime.GOMAXPROCS(0)/2, 1) } //nolint:mnd // A half.

// wait blocks until it is the connection's turn. It fails when the connection is closed or late.
func (h *handshake) wait(closed <-chan struct{}) error {
	turn := h.turns.Ask(h.origin, h.begun)
	h.begun = true

	if err := h.await(turn, closed); err != nil {
		turn.Done()

		return err
	}

	// Only now: HTTP/2 writes beside a Read, and what rests for that must not be a turn that has not come.
	h.turn.Store(turn)

	return nil
}

func (h *handshake) await(turn *crowd.Turn, closed <-chan struct{}) error {
	select {
	case <-turn.Granted():
		return nil
	default:
	}

	late := time.NewTimer(time.Until(h.until))
	defer late.Stop()

	select {
	case <-turn.Granted():
		return nil
	case <-closed:
		return net.ErrClosed
	case <-late.C:
		return os.ErrDeadlineExceeded
	}
}

// rest gives the turn to another, until the next wait.
func (h *handshake) rest() {
	if turn := h.turn.Swap(nil); turn != nil {
		turn.Done()
	}
}
