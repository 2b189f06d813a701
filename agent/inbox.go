package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
)

// Inbox receives the events of a source: see [Parts]. The webhook or the informer calls it. Its
// methods return immediately and may be called concurrently.
type Inbox struct {
	outbox *outbox.Outbox
	missed *missedWatch
	proof  *proof
	now    func() time.Time
}

var _ core.Acceptor = (*Inbox)(nil)

// Accept implements [core.Acceptor].
func (i *Inbox) Accept(manager core.Manager, event core.WatchEvent) core.Outcome {
	return i.outbox.Accept(manager, event)
}

// resyncAll requests at most one resync of every manager in 30 s.
func (i *Inbox) resyncAll() { i.missed.reportMissed() }

// Proved notes that the API server currently calls, or serves, the source for a manager. Heartbeats
// report the time of the last call of Proved.
func (i *Inbox) Proved(manager core.Manager) { i.proof.noteProof(manager, i.now()) }

// Failed counts a failed call from the API server, such as a call in which the API server rejects
// the certificate. Heartbeats report the number.
func (i *Inbox) Failed() { i.proof.failures.Add(1) }

type proof struct {
	failures atomic.Int64

	mu   sync.Mutex
	last map[core.Manager]time.Time // at most defaults.MaxManagers
}

func (p *proof) noteProof(manager core.Manager, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if _, known := p.last[manager]; !known && len(p.last) >= defaults.MaxManagers {
		// Strangers can invent names of managers. The one with the oldest proof is removed.
		oldest := slices.MinFunc(slices.Collect(maps.Keys(p.last)), func(a, b core.Manager) int {
			return p.last[a].Compare(p.last[b])
		})
		delete(p.last, oldest)
	}

	p.last[manager] = now
}

func (p *proof) of(manager core.Manager) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last[manager]
}

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

func (w *missedWatch) start(ctx context.Context) error {
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
