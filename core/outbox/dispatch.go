package outbox

import (
	"context"
	"log/slog"
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

		batch := o.next(ctx, l)
		if batch == nil {
			return
		}

		calls.Go(func() {
			defer func() { <-slots }()

			o.send(ctx, l, batch)
		})
	}
}

// next waits until something is due, and returns nil when ctx ends first.
func (o *Outbox) next(ctx context.Context, l *lane) []*entry {
	for ctx.Err() == nil {
		batch, wait := o.take(l)
		if batch != nil {
			return batch
		}

		pause(ctx, l.wake, wait)
	}

	return nil
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

// take returns a batch of what is due, or how long to wait for it.
func (o *Outbox) take(l *lane) ([]*entry, time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()

	now := time.Now()
	batch, wait := l.take(o.opts.MaxBatch, now)

	for _, e := range batch {
		if e.merge(now) {
			o.count(l.manager, Counts{Coalesced: 1, Pending: -1})
		}
	}

	return batch, wait
}

func (o *Outbox) send(ctx context.Context, l *lane, batch []*entry) {
	events := make([]core.WatchEvent, len(batch))
	for i, e := range batch {
		events[i] = e.event
	}

	start := time.Now()
	err := o.forward(ctx, l.manager, events)
	took := time.Since(start)

	if o.opts.Hooks.Attempted != nil {
		o.opts.Hooks.Attempted(l.manager, len(events), took, err)
	}

	o.opts.Logger.Debug("events forwarded", slog.String("manager", string(l.manager)),
		slog.Int("events", len(events)), slog.Duration("took", took), slog.Any("error", err))
	o.conclude(ctx, l, batch, err)
}

func (o *Outbox) forward(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
	ctx, cancel := context.WithTimeout(ctx, o.opts.ForwardTimeout)
	defer cancel()

	return o.forwarder.Forward(ctx, manager, events)
}

// conclude gives every event of a batch the fate that the forwarder's answer means.
func (o *Outbox) conclude(ctx context.Context, l *lane, batch []*entry, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()

	l.inFlight--
	now := time.Now()

	events, whole := split(err, len(batch))
	o.concludeLane(ctx, l, whole, now)

	for i, e := range batch {
		switch failure := events[i]; {
		case core.IsPermanent(whole):
			e.alone = true
			l.again(e, now)
		case whole != nil:
			l.again(e, e.due)
		case failure == nil:
			o.finish(l, e, Counts{Delivered: 1, Pending: -1})
		case core.IsPermanent(failure):
			o.opts.Logger.Warn("event refused for good", slog.String("manager", string(l.manager)), slog.Any("error", failure))
			o.finish(l, e, Counts{Dropped: map[string]int64{core.Reason(failure): 1}, Pending: -1})
		default:
			e.failures++
			l.again(e, now.Add(o.backoff(e.failures, failure)))
		}
	}

	l.stir()
	signal(o.emptied)
}

// concludeLane pauses a lane whose manager can not be reached, and resumes it.
func (o *Outbox) concludeLane(ctx context.Context, l *lane, whole error, now time.Time) {
	switch reached := whole == nil || core.IsPermanent(whole); {
	case reached && l.failures > 0:
		o.opts.Logger.Info("manager takes events again",
			slog.String("manager", string(l.manager)), slog.Int("attempts", l.failures))

		l.failures = 0
	case reached, ctx.Err() != nil:
	default:
		l.failures++
		wait := o.backoff(l.failures, whole)
		l.resume = now.Add(wait)

		if l.failures == 1 {
			o.opts.Logger.Warn("manager does not take events, they are kept and sent again", slog.String("manager", string(l.manager)),
				slog.String("reason", core.Reason(whole)), slog.Duration("wait", wait), slog.Any("error", whole))
		}
	}
}

// finish counts the fate of an event and makes room for another.
func (o *Outbox) finish(l *lane, e *entry, change Counts) {
	resync := e.event.Kind == core.KindResync

	if l.done(e) && !resync {
		o.keys--
	}

	o.count(l.manager, change)
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
