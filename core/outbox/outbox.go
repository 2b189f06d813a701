// Package outbox keeps events between a change source, which must not wait, and a [core.Forwarder],
// which may have to.
//
// [Outbox.Accept] never blocks. Events with equal keys coalesce: memory is bounded by the number of
// distinct keys, not by the length of an outage. An event is sent until it is acknowledged or given up,
// and has exactly one counted fate.
//
// An event passes these files in this order: accept.go, lane.go (where it waits, as an entry),
// dispatch.go, conclude.go, and resend.go. Heartbeats join in heartbeat.go.
package outbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// ErrStarted means that an outbox was started a second time.
var ErrStarted = errors.New("outbox was started already")

// Outbox holds the events that are not acknowledged yet. Create one with [New]. Its methods may be called
// concurrently.
type Outbox struct {
	forwarder core.Forwarder
	opts      Options

	mu      sync.Mutex
	lanes   map[core.Manager]*lane
	others  Counts // of managers without a lane
	keys    int    // over all lanes, resyncs left out, resends included
	started bool
	stopped bool
	notes   []note
	logged  logged

	added   chan struct{} // holds a token when there may be lanes without dispatcher
	emptied chan struct{} // holds a token when nothing may be pending any more
}

var _ core.Acceptor = (*Outbox)(nil)

// New returns an outbox that sends through forwarder once it is started. It fails on invalid options and
// names them.
func New(forwarder core.Forwarder, opts Options) (*Outbox, error) {
	if forwarder == nil {
		return nil, errors.New("outbox: forwarder is nil, want one")
	}

	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}

	o := &Outbox{
		forwarder: forwarder,
		opts:      opts,
		lanes:     make(map[core.Manager]*lane),
		others:    newCounts(),
		added:     make(chan struct{}, 1),
		emptied:   make(chan struct{}, 1),
	}

	for _, manager := range opts.Managers {
		l, _ := o.lane(manager, time.Now())
		l.configured = true
	}

	return o, nil
}

// OldestPending returns the age of the oldest event of manager that waits for an acknowledgement, 0 when
// none does. Its cost grows with the number of pending events.
func (o *Outbox) OldestPending(manager core.Manager) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()

	if l := o.lanes[manager]; l != nil {
		return l.oldest(time.Now())
	}

	return 0
}

// Retry ends all waits after failures, also those that a receiver asked for, so that due events are sent
// at once. Call it when the cause of a refusal is gone, as after a renewed certificate. It never blocks.
// Its cost grows with the number of refused events.
func (o *Outbox) Retry() {
	now := time.Now()

	o.mu.Lock()
	defer o.mu.Unlock()

	for _, l := range o.lanes {
		l.retry(now)
	}
}

func signal(token chan struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}

// Start sends events until ctx ends, and then goes on until nothing is pending, at most for
// [Options].DrainTimeout. Events that are pending then, and those that are offered later, are dropped
// and counted. Start blocks, waits for its goroutines, and returns [ErrStarted] when it was called before.
func (o *Outbox) Start(ctx context.Context) error {
	if err := o.start(); err != nil {
		return err
	}

	// Deliveries outlive ctx: that is what draining means.
	sending, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()

	var dispatchers sync.WaitGroup

	running := make(map[*lane]bool)

	for open := true; open; {
		o.dispatchNew(sending, running, &dispatchers)

		select {
		case <-o.added:
		case <-ctx.Done():
			open = false
		}
	}

	o.drain(sending, running, &dispatchers)
	abort()
	dispatchers.Wait()
	o.stop()

	return nil
}

func (o *Outbox) start() error {
	o.mu.Lock()
	defer o.mu.Unlock()

	if o.started {
		return ErrStarted
	}

	o.started = true

	if o.opts.ResyncFirst && !o.opts.ResyncOwners {
		for _, manager := range o.opts.Managers {
			o.resync(o.lanes[manager], types.NamespacedName{}, time.Now())
		}
	}

	return nil
}

// dispatchNew starts a dispatcher for each lane that has none.
func (o *Outbox) dispatchNew(ctx context.Context, running map[*lane]bool, all *sync.WaitGroup) {
	o.mu.Lock()
	defer o.unlock()

	for _, l := range o.lanes {
		if !running[l] {
			running[l] = true

			all.Go(func() { o.dispatch(ctx, l) })
		}
	}
}

// drain waits until nothing is pending and the last heartbeats are sent, but not longer than the drain timeout.
func (o *Outbox) drain(ctx context.Context, running map[*lane]bool, all *sync.WaitGroup) {
	if o.opts.DrainTimeout < 0 {
		return
	}

	deadline := time.NewTimer(o.opts.DrainTimeout)
	defer deadline.Stop()

	for !o.announceLeave() || !o.hasLeft() {
		o.dispatchNew(ctx, running, all)

		select {
		case <-o.added:
		case <-o.emptied:
		case <-deadline.C:
			return
		}
	}
}

func (o *Outbox) pending() (n int64) {
	for _, l := range o.lanes {
		n += l.counts.Pending
	}

	return n
}

// stop gives up the pending events.
func (o *Outbox) stop() {
	o.mu.Lock()
	defer o.unlock()

	o.stopped = true

	for _, l := range o.lanes {
		if n := l.counts.Pending; n > 0 {
			o.note(slog.LevelWarn, "events were not delivered before the shutdown",
				slog.String("manager", string(l.manager)), slog.Int64("events", n))
			l.counts.giveUp(n, ReasonShutdown)
		}

		clear(l.entries)
		l.ready, l.refused, l.resends, l.keys = nil, nil, nil, 0
	}

	o.keys = 0
}
