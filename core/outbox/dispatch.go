package outbox

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// dispatch sends the events of a lane until ctx ends or the lane is closed, and returns when the
// last call of the forwarder has.
func (o *Outbox) dispatch(ctx context.Context, l *lane) {
	var calls sync.WaitGroup
	defer calls.Wait()

	slots := make(chan struct{}, o.opts.InFlight)

	for {
		slots <- struct{}{} // The end of ctx ends the calls, and so frees a slot.

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
	probe   bool      // the attempt after a failure
	started time.Time // under the lock, so that it is before or after a pause
	err     error
}

// next waits until something is due. ok is false when ctx ends or the lane is closed first.
func (o *Outbox) next(ctx context.Context, l *lane) (c call, ok bool) {
	for ctx.Err() == nil {
		c, wait := o.take(l)
		if !c.batch.IsEmpty() {
			o.fill(l.manager, c.batch.Heartbeat)
			return c, true
		}
		if !pause(ctx, l, wait) {
			return call{}, false
		}
	}
	return call{}, false
}

// pause waits for the time to pass, for a token or for the end of ctx. A negative wait has no end
// of its own. It reports whether the lane is still open.
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
	defer o.mu.Unlock()
	now := time.Now()
	o.resendDue(l, now)
	entries, beat, wait := l.take(o.opts.MaxBatch, now)
	c = call{entries: entries, batch: core.Batch{Epoch: o.opts.Epoch}, probe: l.probing, started: now}
	for _, e := range entries {
		c.batch.Events = append(c.batch.Events, o.prepare(l, e, now))
	}
	if beat {
		c.batch.Heartbeat = o.heartbeat(l, now)
	}
	return c, wait
}

// prepare returns the event of an entry as it is sent now.
func (o *Outbox) prepare(l *lane, e *entry, now time.Time) core.Numbered {
	if e.merge(now) {
		l.counts.Coalesced++
		l.counts.Pending--
	}
	if at, again := o.resendAt(e, e.sent); again && !at.After(now) {
		e.renew() // Its resend, too. It may have arrived before.
	}
	if o.opts.Epoch != "" && e.ID == "" {
		l.number(e, now)
	}
	return e.Numbered
}

// number gives an event an ID, and its place in the sequence when it is sent for the first time.
func (l *lane) number(e *entry, now time.Time) {
	if e.Sequence == 0 {
		l.sequence++
		e.Sequence = l.sequence
	}
	e.sent = now
	e.ID = l.id("", e.Sequence)
	if e.revision > 0 {
		e.ID += "-" + strconv.Itoa(e.revision)
	}
}

// id differs for all events and heartbeats of this epoch. Managers are numbered apart.
func (l *lane) id(kind string, number uint64) string {
	return l.idPrefix + kind + strconv.FormatUint(number, 10)
}

func (o *Outbox) send(ctx context.Context, l *lane, c call) {
	began := time.Now()
	c.err = o.forward(ctx, l.manager, c.batch)
	took := time.Since(began)
	o.conclude(ctx, l, c)
	if o.opts.Hooks.Attempted != nil {
		o.opts.Hooks.Attempted(l.manager, len(c.batch.Events), took, c.err)
	}
	o.noteForwarded(l, c, took)
}

func (o *Outbox) forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	ctx, cancel := context.WithTimeout(ctx, o.opts.ForwardTimeout)
	defer cancel()
	return o.forwarder.Forward(ctx, manager, batch)
}
