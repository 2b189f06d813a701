// Package outbox keeps events between a change source, which must not wait, and a [core.Forwarder],
// which may have to wait.
//
// [Outbox.Accept] never blocks. Events with equal keys coalesce, so memory is bounded by the number
// of distinct keys and their bytes, not by the length of an outage. An event is retried until it is
// acknowledged or given up, and it has exactly one counted fate.
//
// An event passes accept.go, room.go and keep.go and waits in store.go as an entry. Then it passes
// take.go, dispatch.go, call.go (which sorts the answer), conclude.go and resend.go. Heartbeats
// join in heartbeat.go.
//
// A lane combines parts that do not depend on it: its store, its pause, its schedule of heartbeats,
// the size of its batches, and the owners of its resyncs.
package outbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

var errStarted = errors.New("outbox has already been started: call Start once for each New")

// Outbox holds the events that are not acknowledged yet. Create it with [New]. Its methods may be
// called concurrently.
type Outbox struct {
	lanes

	// The lock of the lanes guards these, too.
	started bool
	stopped bool // Start has ended, or has left all managers.
}

// New returns an outbox that sends through forwarder once it is started. If options are invalid,
// the error names them.
func New(forwarder core.Forwarder, opts Options) (*Outbox, error) {
	if option.IsNil(forwarder) {
		return nil, errors.New("outbox: forwarder is nil, want one")
	}

	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}

	o := &Outbox{lanes: lanes{
		shared: shared{
			forwarder: forwarder,
			opts:      opts,
			log:       newLog(opts.Logger),
			callEnded: make(chan struct{}, 1),
		},
		byManager: make(map[core.Manager]*lane),
		others:    newCounts(),
		added:     make(chan struct{}, 1),
	}}

	for _, manager := range opts.Managers {
		l, _ := o.ensureLane(manager, time.Now()) // There is room for each.
		l.configured = true
	}

	return o, nil
}

// others is the key of the managers without a lane.
const others core.Manager = ""

// Counts returns a consistent snapshot of the fates of the events of each manager. The manager ""
// has the counts of managers beyond [Options].MaxManagers and of managers that were evicted for a
// new manager. The cost does not depend on the number of pending events.
func (o *Outbox) Counts() map[core.Manager]Counts {
	o.mu.Lock()
	defer o.mu.Unlock()

	all := make(map[core.Manager]Counts, len(o.byManager)+1)
	for manager, l := range o.byManager {
		all[manager] = l.counts.clone()
	}

	if o.others.Accepted > 0 {
		all[others] = o.others.clone()
	}
	return all
}

// OldestPending returns the age of the oldest event of manager that waits for an acknowledgement,
// or 0 if no event waits. Its cost grows with the number of pending events.
func (o *Outbox) OldestPending(manager core.Manager) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()

	if l := o.byManager[manager]; l != nil {
		return l.oldestAge(time.Now())
	}
	return 0
}

// Start sends events until ctx ends and then continues until nothing is pending, for at most
// [Options].DrainTimeout. Events that are still pending, and events that are offered later, are
// dropped and counted. Start blocks and waits for its goroutines, but not for a logger that hangs.
// It fails if it was called before.
func (o *Outbox) Start(ctx context.Context) error {
	if err := o.markStarted(); err != nil {
		return err
	}

	endLog := o.log.startWriter()
	defer endLog()

	// Deliveries outlive ctx, for the drain.
	sending, abort := context.WithCancel(context.WithoutCancel(ctx))
	var dispatchers sync.WaitGroup
	o.dispatchAll(ctx, sending, &dispatchers)

	abort()
	dispatchers.Wait()
	o.dropAll()
	return nil
}

func (o *Outbox) markStarted() error {
	o.mu.Lock()
	defer o.mu.Unlock()

	if o.started {
		return errStarted
	}

	o.started = true
	o.resyncConfigured()
	return nil
}

// resyncConfigured makes the first event of each configured manager a resync. Where resyncs are for
// owners, the first event of an owner brings it.
func (o *Outbox) resyncConfigured() {
	if !o.opts.ResyncFirst || o.opts.ResyncOwners {
		return
	}
	for _, manager := range o.opts.Managers {
		o.byManager[manager].resyncFirst(time.Now())
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
		if deadline != nil && o.leaveManagers() {
			return
		}

		select {
		case <-o.added:
		case <-o.callEnded:
		case <-deadline:
			return
		case <-ended:
			if o.opts.DrainTimeout < 0 {
				return
			}
			o.drain()
			ended = nil
			deadline = time.After(o.opts.DrainTimeout)
		}
	}
}

func (o *Outbox) drain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drains = true
}

// dispatchNew starts a dispatcher for each lane without a dispatcher. The goroutine of Start calls
// it.
func (o *Outbox) dispatchNew(ctx context.Context, all *sync.WaitGroup) {
	o.mu.Lock()
	defer o.mu.Unlock()

	for _, l := range o.byManager {
		if !l.dispatched {
			l.dispatched = true
			all.Go(func() { l.dispatchCalls(ctx) })
		}
	}
}

// leaveManagers schedules the last heartbeats, and reports whether all were sent. Then it stops the
// outbox.
func (o *Outbox) leaveManagers() (done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()

	done = true
	for _, l := range o.byManager {
		done = l.scheduleLast(time.Now()) && done
	}

	o.stopped = done
	return done
}

func (o *Outbox) dropAll() {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.stopped = true
	for _, l := range o.byManager {
		l.noteLeft()
		l.dropAll(ReasonShutdown)
	}
}
