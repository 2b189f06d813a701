package crowd

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// ErrGone is what [Worker.Wait] returns to one who has gone meanwhile.
var ErrGone = errors.New("gone before its turn has come")

// Worker is one who has several turns, one after the other, and in between waits for somebody else: a connection whose TLS handshake
// computes, and then waits for the other end. It holds up nobody while it rests, however long that takes.
//
// Wait is called by one goroutine at a time, Rest by any.
type Worker struct {
	turns *Turns
	from  string
	until time.Time
	begun bool
	turn  atomic.Pointer[Turn]
}

// Worker returns one from an origin, for whom it is not worth working after that time.
func (t *Turns) Worker(from string, until time.Time) *Worker {
	return &Worker{turns: t, from: from, until: until}
}

// Wait blocks until it is the worker's turn, which lasts until Rest. It fails with [ErrGone] when gone is closed before, and with
// [context.DeadlineExceeded], which callers of the network know as a timeout, when it is late.
func (w *Worker) Wait(gone <-chan struct{}) error {
	turn := w.turns.Ask(w.from, w.begun)
	w.begun = true

	if err := w.await(turn, gone); err != nil {
		turn.Done()

		return err
	}

	// Only now: who rests meanwhile, as HTTP/2 does that writes beside a Read, must not end a turn that has not come.
	w.turn.Store(turn)

	return nil
}

func (w *Worker) await(turn *Turn, gone <-chan struct{}) error {
	select {
	case <-turn.Granted():
		return nil
	default:
	}

	late := time.NewTimer(time.Until(w.until))
	defer late.Stop()

	select {
	case <-turn.Granted():
		return nil
	case <-gone:
		return ErrGone
	case <-late.C:
		return context.DeadlineExceeded
	}
}

// Rest gives the turn to another, until the next Wait. Without a turn it does nothing.
func (w *Worker) Rest() {
	if turn := w.turn.Swap(nil); turn != nil {
		turn.Done()
	}
}
