package agent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
)

const (
	// missedTick is the time between two looks at the clock.
	missedTick = 250 * time.Millisecond
	// longestStall is the shortest timeout that a webhook can have: no API server gives up before.
	longestStall = time.Second
	// missedPace is the least time between two resyncs.
	missedPace = 30 * time.Second
)

// missedWatch requests a resync when changes may have been missed: after a pause of the agent (no
// CPU, SIGSTOP, a suspended machine), and when the source reports it. There is at most one resync
// every missedPace, and the last one is never lost.
//
// After a stall, requests on open connections are still read. But an API server that gave up in the
// meantime completes its new connections, and does not send those requests.
type missedWatch struct {
	stalled func(hook.Stall)
	resync  func()
	now     func() time.Time
	log     *slog.Logger

	// reported counts reports that missed does not have yet.
	reported atomic.Int64

	last   time.Time
	next   time.Time // no resync before
	missed missed
}

type missed struct {
	stalls  int
	longest time.Duration
	reports int64
}

// reportMissed may be called concurrently, and does not block.
func (w *missedWatch) reportMissed() { w.reported.Add(1) }

func (w *missedWatch) watchClock(ctx context.Context) error {
	w.last = w.now()
	periodic.Call(ctx, missedTick, func() {
		w.requestDue(ctx, w.now())
		w.last = w.now() // The time that requestDue took is no stall.
	})
	w.next = time.Time{} // There is no later tick.
	w.requestDue(ctx, w.now())
	return nil
}

func (w *missedWatch) requestDue(ctx context.Context, now time.Time) {
	w.missed.reports += w.reported.Swap(0)
	w.noteStall(now)
	if w.missed == (missed{}) || now.Before(w.next) {
		return
	}

	w.log.WarnContext(ctx, "reviews may have been missed: a resync is requested",
		slog.Int("stalls", w.missed.stalls), slog.Duration("longest_stall", w.missed.longest),
		slog.Int64("connections", w.missed.reports))
	w.next = now.Add(missedPace)
	w.missed = missed{}
	w.resync()
}

func (w *missedWatch) noteStall(now time.Time) {
	// Of a suspended machine, only the wall clock may go on.
	took := max(now.Sub(w.last), now.Round(0).Sub(w.last.Round(0)))
	w.last = now
	if took < longestStall {
		return
	}

	w.stalled(hook.Stall{Took: took})
	w.missed.stalls++
	w.missed.longest = max(w.missed.longest, took)
}
