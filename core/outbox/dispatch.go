package outbox

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// dispatch sends what a lane holds until ctx ends, and returns when the last call of the forwarder has.
func (o *Outbox) dispatch(ctx context.Context, l *lane) {
	var calls sync.WaitGroup
	defer calls.Wait()

	slots := make(chan struct{}, o.opts.InFlight)

	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}

		batch, events := o.next(ctx, l)
		if events == nil {
			return
		}

		calls.Go(func() {
			defer func() { <-slots }()

			o.send(ctx, l, batch, events)
		})
	}
}

// next waits until something is due, and returns nil when ctx ends first.
func (o *Outbox) next(ctx context.Context, l *lane) ([]*entry, []core.WatchEvent) {
	for ctx.Err() == nil {
		batch, events, wait := o.take(l)
		if events != nil {
			return batch, events
		}

		pause(ctx, l.wake, wait)
	}

	return nil, nil
}

// pause waits for the time to pass, for a token or for the end of ctx. A negative wait has no end of its own.
func pause(ctx context.Context, wake <-chan struct{}, wait time.Duration) {
	var passed <-chan time.Time

	if wait >= 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()

		passed = timer.C
	}

	select {
	case <-wake:
	case <-passed:
	case <-ctx.Done():
	}
}

// take returns what is due and the events to send for it, of which a heartbeat is the last, or how long to wait.
func (o *Outbox) take(l *lane) (batch []*entry, events []core.WatchEvent, wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()

	now := time.Now()
	o.lookAgain(l, now)

	batch, beat, wait := l.take(o.opts.MaxBatch, now)

	for _, e := range batch {
		if e.merge(now) {
			o.count(l.manager, Counts{Coalesced: 1, Pending: -1})
		}

		o.number(l, &e.event)
		events = append(events, e.event)
	}

	if beat && l.upToDate(batch) {
		events = append(events, o.heartbeat(l, now))
	}

	return batch, events, wait
}

// number gives an event that is sent for the first time its place in the sequence.
func (o *Outbox) number(l *lane, event *core.WatchEvent) {
	if o.opts.Epoch != "" && event.Sequence == 0 {
		l.sequence++
		event.Epoch, event.Sequence, event.ID = o.opts.Epoch, l.sequence, o.id(l, "", l.sequence)
	}
}

// id names one event among all that this process sends. Managers are numbered apart.
func (o *Outbox) id(l *lane, kind string, number uint64) string {
	return o.opts.Epoch + "-" + string(l.manager) + "-" + kind + strconv.FormatUint(number, 10)
}

func (o *Outbox) send(ctx context.Context, l *lane, batch []*entry, events []core.WatchEvent) {
	start := time.Now()
	err := o.forward(ctx, l.manager, events)
	took := time.Since(start)

	if o.opts.Hooks.Attempted != nil {
		o.opts.Hooks.Attempted(l.manager, len(events), took, err)
	}

	if o.opts.Logger.Enabled(ctx, slog.LevelDebug) {
		o.opts.Logger.DebugContext(ctx, "events forwarded", slog.String("manager", string(l.manager)),
			slog.Int("events", len(events)), slog.Duration("took", took), slog.Any("error", err))
	}

	o.conclude(ctx, l, batch, call{events: len(events), started: start, err: err})
}

// call is one of the forwarder, that has ended.
type call struct {
	events  int // a heartbeat included
	started time.Time
	err     error
}

func (o *Outbox) forward(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
	ctx, cancel := context.WithTimeout(ctx, o.opts.ForwardTimeout)
	defer cancel()

	return o.forwarder.Forward(ctx, manager, events)
}

// conclude gives every event of a batch the fate that the forwarder's answer means.
func (o *Outbox) conclude(ctx context.Context, l *lane, batch []*entry, c call) {
	o.mu.Lock()
	defer o.mu.Unlock()

	l.inFlight--
	now := time.Now()

	events, whole := split(c.err, c.events)

	// A heartbeat that comes back says nothing of the manager: it may not have been sent at all.
	if len(batch) > 0 || len(events) == 0 {
		o.concludeLane(ctx, l, whole, c.started, now)
	}

	if c.events > len(batch) {
		l.beaten(whole != nil, now)
	}

	for i, e := range batch {
		if whole == nil {
			l.confirmed = max(l.confirmed, e.event.Sequence)
		}

		again := e.again.After(c.started)

		switch failure := events[i]; {
		case whole != nil:
			e.alone = e.alone || core.IsPermanent(whole)
			l.again(e, e.due)
		case failure == nil:
			o.finish(l, e, Counts{Delivered: 1, Pending: -1}, again)
		case core.IsPermanent(failure):
			o.opts.Logger.WarnContext(ctx, "event refused for good", slog.String("manager", string(l.manager)), slog.Any("error", failure))
			refused := e.event
			stand := refused.Kind == core.KindChanged // A resync stands in, and has the second look. For a resync, there is only that.
			o.finish(l, e, Counts{Dropped: map[string]int64{core.Reason(failure): 1}, Pending: -1}, again && !stand)

			if stand {
				o.keep(l, l.standIn(refused), now, o.opts.LookAgain)
			}
		default:
			e.failures++
			l.again(e, now.Add(o.wait(l, e.failures, failure, c.started)))
		}
	}

	l.stir()
	signal(o.emptied)
}

// concludeLane pauses a lane whose manager can not be reached, and resumes it.
func (o *Outbox) concludeLane(ctx context.Context, l *lane, whole error, started, now time.Time) {
	switch reached := whole == nil || core.IsPermanent(whole); {
	case reached && l.failures > 0:
		o.opts.Logger.InfoContext(ctx, "manager takes events again",
			slog.String("manager", string(l.manager)), slog.Int("attempts", l.failures))

		l.failures = 0
	case reached, ctx.Err() != nil:
	default:
		l.failures++
		wait := o.wait(l, l.failures, whole, started)
		l.resume = now.Add(wait)

		if l.failures == 1 {
			o.opts.Logger.WarnContext(ctx, "manager does not take events, they are kept and sent again", slog.String("manager", string(l.manager)),
				slog.String("reason", core.Reason(whole)), slog.Duration("wait", wait), slog.Any("error", whole))
		}
	}
}

// finish counts the fate of an event and makes room for another, or plans the second look.
func (o *Outbox) finish(l *lane, e *entry, change Counts, again bool) {
	resync := e.event.Kind == core.KindResync

	if l.done(e, again) && !resync {
		o.keys--
	}

	o.count(l.manager, change)
}

// wait returns how long to wait after so many failures in a row: not at all when the last call began before Retry was called, as its
// answer is to what was replaced since.
func (o *Outbox) wait(l *lane, failures int, err error, started time.Time) time.Duration {
	if l.retried.After(started) {
		return 0
	}

	return o.backoff(failures, err)
}

// maxDoublings is how often a wait doubles before it is the longest one whatever its beginning, and no shift overflows.
const maxDoublings = 20

// backoff returns how long to wait after so many failures in a row. A wait that the receiver asks for is kept to, and
// spread by a quarter, so that senders who were told the same do not come back at once.
func (o *Outbox) backoff(failures int, err error) time.Duration {
	wait := o.opts.MaxBackoff
	if doublings := failures - 1; doublings < maxDoublings {
		wait = min(wait, o.opts.MinBackoff<<doublings)
	}

	wait = wait/2 + time.Duration(o.opts.Random()*float64(wait/2))

	if asked := core.RetryAfter(err); asked > 0 {
		wait = max(wait, asked+time.Duration(o.opts.Random()*float64(asked)/4))
	}

	return wait
}
