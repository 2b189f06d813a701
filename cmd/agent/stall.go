package main

import (
	"context"
	"log/slog"
	"time"
)

const (
	// stallTick is how often the agent looks whether it runs.
	stallTick = 250 * time.Millisecond
	// longestStall is the shortest timeout that a webhook can have: nobody gives up before.
	longestStall = time.Second
	// stallPace bounds how often a runtime is looked at because of its agent's stalls.
	stallPace = 30 * time.Second
)

// stallWatch notices that the agent did not run: stopped, frozen, or without a processor. An API server that gave up meanwhile leaves no other
// trace. What it sent on open connections is still read, but its new connections are completed as if nothing had been, and those writes were
// never told of.
type stallWatch struct {
	// stalled is told of each stall, and resync asks for a look at the whole runtime.
	stalled func()
	resync  func()
	log     *slog.Logger

	last    time.Time
	next    time.Time // no resync before
	count   int       // stalls that no resync stands for yet
	longest time.Duration
}

func (w *stallWatch) start(ctx context.Context) error {
	tick := time.NewTicker(stallTick)
	defer tick.Stop()

	w.last = time.Now()

	for {
		select {
		case <-tick.C:
			w.look(ctx, time.Now())
			w.last = time.Now() // What it told of took its time, which is no stall.
		case <-ctx.Done():
			w.next = time.Time{} // There is no later.
			w.look(ctx, time.Now())

			return nil
		}
	}
}

// look is called at every tick, with the time that it is then. The resync of a stall that comes soon after another's waits, and is never left out.
func (w *stallWatch) look(ctx context.Context, now time.Time) {
	took := now.Sub(w.last)
	w.last = now

	if took >= longestStall {
		w.stalled()

		w.count++
		w.longest = max(w.longest, took)
	}

	if w.count == 0 || now.Before(w.next) {
		return
	}

	w.log.WarnContext(ctx, "the agent did not run for longer than an API server may wait: a resync stands in for what it was not told",
		slog.Int("stalls", w.count), slog.Duration("longest", w.longest))

	w.next, w.count, w.longest = now.Add(stallPace), 0, 0

	w.resync()
}
