// Package outbox keeps events between a source, which must not wait, and a [core.Forwarder], which may have to.
//
// Accept never blocks. Events with equal keys coalesce, so that memory is bounded by the number of distinct keys and not by the
// length of an outage. What is kept is sent until it is acknowledged or refused for good, and every event has exactly one
// counted fate.
package outbox

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// ErrStarted means that an outbox was started a second time.
var ErrStarted = errors.New("outbox was started already")

// Outbox holds what is not yet acknowledged. Create one with [New]; its methods may be called concurrently.
type Outbox struct {
	forwarder core.Forwarder
	opts      Options

	mu      sync.Mutex
	lanes   map[core.Manager]*lane
	keys    int // distinct, over all lanes, resyncs left out, those that rest included
	started bool
	stopped bool
	added   chan struct{} // holds a token when there may be lanes without dispatcher
	emptied chan struct{} // holds a token when nothing may be pending any more
}

// New returns an outbox that sends through forwarder once it is started. It fails on options that make no sense, and names them.
func New(forwarder core.Forwarder, opts Options) (*Outbox, error) {
	if forwarder == nil {
		return nil, errors.New("outbox: forwarder is nil, want one")
	}

	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}

	return &Outbox{
		forwarder: forwarder,
		opts:      opts,
		lanes:     make(map[core.Manager]*lane),
		added:     make(chan struct{}, 1),
		emptied:   make(chan struct{}, 1),
	}, nil
}

// Accept takes an event for manager. It never blocks, and its cost does not depend on how much is pending. Events
// are accepted before Start, too.
func (o *Outbox) Accept(manager core.Manager, event core.WatchEvent) Outcome {
	now := time.Now()

	o.mu.Lock()
	defer o.mu.Unlock()

	if o.stopped {
		o.refuse(manager, ReasonShutdown)

		return Dropped
	}

	known := o.lanes[manager] != nil

	l := o.lane(manager)
	if l == nil {
		o.refuse(manager, ReasonOverflow)

		return Dropped
	}

	if event.Kind == core.KindResync && event.Owner == nobody() && o.opts.ResyncOwners {
		return o.resyncKnown(l, now)
	}

	if o.isNews(l, known, event.Owner) && o.opts.ResyncFirst {
		o.missed(l, event.Owner, now)
	}

	if event.Kind != core.KindResync && l.entries[event.Key()] == nil {
		if o.keys >= o.opts.MaxKeys && !o.makeRoom(now) {
			return o.overflow(l, event, now)
		}

		o.keys++
	}

	return o.keep(l, event, now, o.opts.LookAgain)
}

// keep puts an event for which there is room into its lane. It is followed by a second look that long after now, none if again is not positive.
func (o *Outbox) keep(l *lane, event core.WatchEvent, now time.Time, again time.Duration) Outcome {
	if l.put(event, now, now.Add(max(o.opts.Settle, 0)), after(now, again)) {
		o.count(l.manager, Counts{Accepted: 1, Coalesced: 1})

		return Coalesced
	}

	o.count(l.manager, Counts{Accepted: 1, Pending: 1})

	return Accepted
}

func (o *Outbox) refuse(manager core.Manager, reason string) {
	o.count(manager, Counts{Accepted: 1, Dropped: map[string]int64{reason: 1}})
}

// lane returns the manager's lane, and nil when there are too many.
func (o *Outbox) lane(manager core.Manager) *lane {
	if l := o.lanes[manager]; l != nil {
		return l
	}

	if len(o.lanes) >= o.opts.MaxManagers {
		return nil
	}

	l := newLane(manager)
	o.lanes[manager] = l

	if o.opts.Epoch != "" && o.opts.HeartbeatInterval > 0 {
		l.pulse.next = time.Now()
	}

	signal(o.added)

	return l
}

// count adds a balanced change to the counts of a manager.
func (o *Outbox) count(manager core.Manager, change Counts) {
	if l := o.lanes[manager]; l != nil {
		l.counts.add(change)
	}

	if o.opts.Hooks.Counted != nil {
		o.opts.Hooks.Counted(manager, change)
	}
}

func (c *Counts) add(change Counts) {
	c.Accepted += change.Accepted
	c.Delivered += change.Delivered
	c.Coalesced += change.Coalesced
	c.Pending += change.Pending

	for reason, n := range change.Dropped {
		c.Dropped[reason] += n
	}
}

// Counts returns the fates of the events of every manager so far, as of one moment.
func (o *Outbox) Counts() map[core.Manager]Counts {
	o.mu.Lock()
	defer o.mu.Unlock()

	all := make(map[core.Manager]Counts, len(o.lanes))

	for manager, l := range o.lanes {
		counts := l.counts
		counts.Dropped = maps.Clone(counts.Dropped)
		all[manager] = counts
	}

	return all
}

// OldestPending returns how long the oldest event of manager has been waiting, 0 when none is. Its cost grows with what is pending.
func (o *Outbox) OldestPending(manager core.Manager) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()

	l := o.lanes[manager]
	if l == nil {
		return 0
	}

	return l.oldest(time.Now())
}

// Retry ends all waits after failures, also those that a receiver asked for, so that what is due is tried at once: once for each manager that
// could not be reached. It is for when what was refused has changed, such as a renewed certificate, and for nothing that comes often. It
// never blocks. Its cost grows with what is pending.
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

// Start sends what is accepted until ctx ends, and then goes on for the drain timeout or until nothing is pending.
// What is still pending then is dropped and counted; everything offered later, too. It blocks, may be called once, and
// returns [ErrStarted] otherwise.
func (o *Outbox) Start(ctx context.Context) error {
	if err := o.start(); err != nil {
		return err
	}

	// Deliveries outlive ctx: that is what draining means.
	sending, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()

	var dispatchers sync.WaitGroup

	running := make(map[core.Manager]bool)

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

	for _, manager := range o.opts.Managers {
		if o.lanes[manager] == nil {
			o.greet(manager)
		}
	}

	return nil
}

// greet makes a manager known that no event came for yet.
func (o *Outbox) greet(manager core.Manager) {
	l := o.lane(manager)
	if l == nil {
		o.opts.Logger.Warn("manager is left out, there are too many", slog.String("manager", string(manager)))

		return
	}

	if o.opts.ResyncFirst && !o.opts.ResyncOwners {
		o.missed(l, nobody(), time.Now())
	}
}

// dispatchNew starts a dispatcher for each lane that has none.
func (o *Outbox) dispatchNew(ctx context.Context, running map[core.Manager]bool, all *sync.WaitGroup) {
	o.mu.Lock()
	defer o.mu.Unlock()

	for manager, l := range o.lanes {
		if !running[manager] {
			running[manager] = true

			all.Go(func() { o.dispatch(ctx, l) })
		}
	}
}

// drain waits until nothing is pending and the last heartbeats are sent, but not longer than the drain timeout.
func (o *Outbox) drain(ctx context.Context, running map[core.Manager]bool, all *sync.WaitGroup) {
	if o.opts.DrainTimeout < 0 {
		return
	}

	deadline := time.NewTimer(o.opts.DrainTimeout)
	defer deadline.Stop()

	for !o.takeLeave() || !o.hasLeft() {
		o.dispatchNew(ctx, running, all)

		select {
		case <-o.added:
		case <-o.emptied:
		case <-deadline.C:
			return
		}
	}
}

func (o *Outbox) pendingLocked() (n int64) {
	for _, l := range o.lanes {
		n += l.counts.Pending
	}

	return n
}

// stop gives up what is pending.
func (o *Outbox) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.stopped = true

	for _, l := range o.lanes {
		if n := l.counts.Pending; n > 0 {
			o.opts.Logger.Warn("events were not delivered before the shutdown",
				slog.String("manager", string(l.manager)), slog.Int64("events", n))
			o.count(l.manager, Counts{Pending: -n, Dropped: map[string]int64{ReasonShutdown: n}})
		}

		clear(l.entries)
		l.queue, l.changeLooks, l.resyncLooks = nil, nil, nil
	}

	o.keys = 0
}
