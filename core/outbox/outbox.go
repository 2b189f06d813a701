// Package outbox keeps events between a change source, which must not wait, and a [core.Forwarder],
// which may have to.
//
// [Outbox.Accept] never blocks. Events with equal keys coalesce: memory is bounded by the number of
// distinct keys and by their bytes, not by the length of an outage. An event is sent until it is
// acknowledged or given up, and has exactly one counted fate.
//
// An event passes these files in this order: accept.go, room.go, lane.go (where it waits, as an
// entry), dispatch.go, conclude.go, and resend.go. Heartbeats join in heartbeat.go.
package outbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

var errStarted = errors.New("outbox was started already")

// Outbox holds the events that are not acknowledged yet. Create one with [New]. Its methods may be
// called concurrently.
type Outbox struct {
	shared

	lanes   map[core.Manager]*lane
	others  Counts // of managers without a lane
	evicted int    // lanes
	started bool
	stopped bool

	added chan struct{} // holds a token when there may be lanes without dispatcher
}

var _ core.Acceptor = (*Outbox)(nil)

// New returns an outbox that sends through forwarder once it is started. It fails on invalid
// options and names them.
func New(forwarder core.Forwarder, opts Options) (*Outbox, error) {
	if option.IsNil(forwarder) {
		return nil, errors.New("outbox: forwarder is nil, want one")
	}
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	o := &Outbox{
		shared: shared{forwarder: forwarder, opts: opts, log: newLog(opts.Logger), emptied: make(chan struct{}, 1)},
		lanes:  make(map[core.Manager]*lane),
		others: newCounts(),
		added:  make(chan struct{}, 1),
	}
	for _, manager := range opts.Managers {
		l, _ := o.lane(manager, time.Now()) // There is room for each.
		l.configured = true
	}
	return o, nil
}

// OldestPending returns the age of the oldest event of manager that waits for an acknowledgement, 0
// when none does. Its cost grows with the number of pending events.
func (o *Outbox) OldestPending(manager core.Manager) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if l := o.lanes[manager]; l != nil {
		return l.oldest(time.Now())
	}
	return 0
}

// Retry ends all waits after failures, also those that a receiver asked for, so that due events are
// sent immediately. Call it when the cause of a refusal is gone, as after a renewed certificate. It
// never blocks. Its cost grows with the number of refused events.
func (o *Outbox) Retry() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
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
// [Options].DrainTimeout. Events that are pending then, and those that are offered later, are
// dropped and counted. Start blocks, waits for its goroutines, and fails when it was called
// before. It does not wait for a logger that hangs.
func (o *Outbox) Start(ctx context.Context) error {
	if err := o.start(); err != nil {
		return err
	}
	endLog := o.log.start()
	defer endLog()
	// Deliveries outlive ctx, for the drain.
	sending, abort := context.WithCancel(context.WithoutCancel(ctx))
	var dispatchers sync.WaitGroup
	o.dispatchAll(ctx, sending, &dispatchers)
	abort()
	dispatchers.Wait()
	o.stop()
	return nil
}

func (o *Outbox) start() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.started {
		return errStarted
	}
	o.started = true
	o.resyncConfigured()
	return nil
}

func (o *Outbox) resyncConfigured() {
	if !o.opts.ResyncFirst || o.opts.ResyncOwners {
		return
	}
	for _, manager := range o.opts.Managers {
		l, resync := o.lanes[manager], core.WatchEvent{Resync: true}
		if l.entries.find(resync.Key()) == nil {
			l.resync(types.NamespacedName{}, time.Now())
		}
	}
}

// dispatchAll starts a dispatcher for each lane, also for those to come. After the end of ctx it
// goes on until nothing is pending and the last heartbeats are sent, but not longer than the drain
// timeout.
func (o *Outbox) dispatchAll(ctx, sending context.Context, all *sync.WaitGroup) {
	var deadline <-chan time.Time
	ended := ctx.Done()
	for {
		o.dispatchNew(sending, all)
		if deadline != nil && o.leave() {
			return
		}
		select {
		case <-o.added:
		case <-o.emptied:
		case <-deadline:
			return
		case <-ended:
			if o.opts.DrainTimeout < 0 {
				return
			}
			ended, deadline = nil, time.After(o.opts.DrainTimeout)
		}
	}
}

func (o *Outbox) dispatchNew(ctx context.Context, all *sync.WaitGroup) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.lanes {
		if !l.dispatched {
			l.dispatched = true
			all.Go(func() { l.dispatch(ctx) })
		}
	}
}

func (o *Outbox) leave() (done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	done = true
	for _, l := range o.lanes {
		done = l.leave(time.Now()) && done
	}
	o.stopped = done
	return done
}

func (o *Outbox) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopped = true
	o.allKeys = 0
	o.allBytes = 0
	for _, l := range o.lanes {
		if n := l.counts.Pending; n > 0 {
			l.log.note(slog.LevelWarn, "events were not delivered before the shutdown",
				slog.String("manager", string(l.manager)), slog.Int64("events", n))
		}
		l.clear(ReasonShutdown)
	}
}
