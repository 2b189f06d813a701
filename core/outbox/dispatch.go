package outbox

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// dispatch sends the events of a lane until ctx ends or the lane is closed, and returns when the last
// call of the forwarder has.
func (o *Outbox) dispatch(ctx context.Context, l *lane) {
	var calls sync.WaitGroup
	defer calls.Wait()

	slots := make(chan struct{}, o.opts.InFlight)

	for {
		select {
		case slots <- struct{}{}:
		case <-l.closed:
			return
		case <-ctx.Done():
			return
		}

		c, ok := o.next(ctx, l)
		if !ok {
			return
		}

		calls.Go(func() {
			defer func() { <-slots }()

			o.send(ctx, l, c)
		})
	}
}

// call is one call of the forwarder: a batch, and the entries of its events.
type call struct {
	entries []*entry
	batch   core.Batch
	started time.Time
	err     error
}

// next waits until something is due. ok is false when ctx ends or the lane is closed first.
func (o *Outbox) next(ctx context.Context, l *lane) (c call, ok bool) {
	for ctx.Err() == nil {
		c, wait := o.take(l)
		if !c.batch.IsEmpty() {
			return c, true
		}

		if !pause(ctx, l, wait) {
			return call{}, false
		}
	}

	return call{}, false
}

// pause waits for the time to pass, for a token or for the end of ctx. A negative wait has no end of
// its own. It reports whether the lane is still open.
func pause(ctx context.Context, l *lane, wait time.Duration) (open bool) {
	var passed <-chan time.Time

	if wait >= 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()

		passed = timer.C
	}

	select {
	case <-l.wake:
	case <-passed:
	case <-ctx.Done():
	case <-l.closed:
		return false
	}

	return true
}

// take returns the batch that is due, empty when there is none, and then how long to wait.
func (o *Outbox) take(l *lane) (c call, wait time.Duration) {
	o.mu.Lock()
	defer o.unlock()

	now := time.Now()
	o.resendDue(l, now)

	entries, beat, wait := l.take(o.opts.MaxBatch, now)
	c = call{entries: entries, batch: core.Batch{Epoch: o.opts.Epoch}}

	for _, e := range entries {
		if e.merge(now) {
			l.counts.Coalesced++
			l.counts.Pending--
		}

		o.number(l, e)
		c.batch.Events = append(c.batch.Events, e.Numbered)
	}

	if beat && l.isUpToDate(entries) {
		c.batch.Heartbeat = o.heartbeat(l, now)
	}

	if c.batch.IsEmpty() && beat { // Its numbers must arrive first.
		l.inFlight--
		l.pulse.next = now.Add(o.opts.MinBackoff)
		wait = o.opts.MinBackoff
	}

	return c, wait
}

// number gives an event its place in the sequence when it is sent for the first time, and an ID when it
// says something new.
func (o *Outbox) number(l *lane, e *entry) {
	if o.opts.Epoch == "" || e.ID != "" {
		return
	}

	if e.Sequence == 0 {
		l.sequence++
		e.Sequence = l.sequence
	}

	e.ID = o.id(l, "", e.Sequence)
	if e.revision > 0 {
		e.ID += "-" + strconv.Itoa(e.revision)
	}
}

// id differs for all events and heartbeats of this epoch. Managers are numbered apart.
func (o *Outbox) id(l *lane, kind string, number uint64) string {
	return o.opts.Epoch + "-" + string(l.manager) + "-" + kind + strconv.FormatUint(number, 10)
}

func (o *Outbox) send(ctx context.Context, l *lane, c call) {
	c.started = time.Now()
	c.err = o.forward(ctx, l.manager, c.batch)
	took := time.Since(c.started)

	o.conclude(ctx, l, c)

	if o.opts.Hooks.Attempted != nil {
		o.opts.Hooks.Attempted(l.manager, len(c.batch.Events), took, c.err)
	}

	if o.opts.Logger.Enabled(ctx, slog.LevelDebug) {
		o.opts.Logger.DebugContext(ctx, "batch forwarded", slog.String("manager", string(l.manager)),
			slog.Int("events", len(c.batch.Events)), slog.Duration("took", took), slog.Any("error", c.err))
	}
}

func (o *Outbox) forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	ctx, cancel := context.WithTimeout(ctx, o.opts.ForwardTimeout)
	defer cancel()

	return o.forwarder.Forward(ctx, manager, batch)
}
