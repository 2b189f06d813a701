package main

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// missedTick is the time between two looks at the clock.
	missedTick = 250 * time.Millisecond
	// longestStall is the shortest timeout that a webhook can have: no API server gives up before.
	longestStall = time.Second
	// missedPace is the least time between two resyncs.
	missedPace = 30 * time.Second
)

// missedWatch requests a resync when reviews may have been missed without a trace: when the agent
// did not run for a while (no CPU, SIGSTOP), and when the webhook closed a connection for its
// limit. There is at most one resync every missedPace, and the last one is never lost.
//
// After a stall, requests on open connections are still read. But an API server that gave up in the
// meantime completes its new connections as if nothing had happened, and does not send those
// requests.
type missedWatch struct {
	// stalled is called for each stall.
	stalled func()
	resync  func()
	log     *slog.Logger

	// newlyClosed counts connections that missed does not have yet.
	newlyClosed atomic.Int64

	last   time.Time
	next   time.Time // no resync before
	missed missed
}

// missed is everything that the next resync stands in for.
type missed struct {
	stalls  int
	longest time.Duration
	closed  int64
}

// connectionClosed may be called concurrently, and does not block.
func (w *missedWatch) connectionClosed() { w.newlyClosed.Add(1) }

func (w *missedWatch) start(ctx context.Context) error {
	tick := time.NewTicker(missedTick)
	defer tick.Stop()

	w.last = time.Now()

	for {
		select {
		case <-tick.C:
			w.look(ctx, time.Now())
			w.last = time.Now() // The time that look took is no stall.
		case <-ctx.Done():
			w.next = time.Time{} // There is no later tick.
			w.look(ctx, time.Now())

			return nil
		}
	}
}

// look is called at every tick, with its time.
func (w *missedWatch) look(ctx context.Context, now time.Time) {
	w.missed.closed += w.newlyClosed.Swap(0)
	w.noteStall(now)

	if w.missed == (missed{}) || now.Before(w.next) {
		return
	}

	w.log.WarnContext(ctx, "reviews may have been missed: a resync is requested", slog.Int("stalls", w.missed.stalls),
		slog.Duration("longest_stall", w.missed.longest), slog.Int64("closed_connections", w.missed.closed))

	w.next, w.missed = now.Add(missedPace), missed{}

	w.resync()
}

func (w *missedWatch) noteStall(now time.Time) {
	took := now.Sub(w.last)
	w.last = now

	if took < longestStall {
		return
	}

	w.stalled()

	w.missed.stalls++
	w.missed.longest = max(w.missed.longest, took)
}
