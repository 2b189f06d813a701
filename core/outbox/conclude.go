package outbox

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// conclude gives each event of a call the fate that the forwarder's answer means.
func (o *Outbox) conclude(ctx context.Context, l *lane, c call) {
	o.mu.Lock()
	defer o.unlock()

	l.inFlight--
	now := time.Now()
	events, whole := split(c.err, len(c.batch.Events))

	o.concludeLane(ctx, l, whole, c.started, now)

	if c.batch.Heartbeat != nil {
		o.concludeHeartbeat(l, errors.Join(whole, events[len(c.batch.Events)]), now)
	}

	for i, e := range c.entries {
		switch {
		case whole != nil:
			e.alone = e.alone || core.IsPermanent(whole)
			l.enqueue(e)
		case errors.Is(events[i], core.ErrNotSent):
			l.enqueue(e)
		default:
			l.confirmed = max(l.confirmed, e.Sequence)
			o.concludeEvent(l, e, events[i], c.started, now)
		}
	}

	signal(l.wake)
	signal(o.emptied)
}

// split sorts the answer to a call with n events: by event, or one error for all.
func split(err error, n int) (events core.EventErrors, whole error) {
	if err == nil || errors.As(err, &events) {
		return events, nil
	}

	if n == 1 && core.IsPermanent(err) {
		return core.EventErrors{0: err}, nil
	}

	return nil, err
}

// concludeLane pauses a lane whose manager cannot be reached, and resumes it. A failure of a call that
// began before the pause is the failure that the pause is for, and counts once.
func (o *Outbox) concludeLane(ctx context.Context, l *lane, whole error, started, now time.Time) {
	reached := whole == nil || core.IsPermanent(whole)
	unknown := errors.Is(whole, core.ErrUnknownManager)
	l.reached = l.reached || whole == nil
	l.unknown = unknown && !l.reached

	switch {
	case reached && l.failures > 0:
		o.noteResumed(l)
		l.failures = 0
	case reached, ctx.Err() != nil, started.Before(l.paused):
	default:
		l.failures++
		wait := o.wait(l, l.failures, whole, started)
		l.paused, l.resume = now, now.Add(wait)
		o.notePaused(l, whole, wait, now)
	}
}

// concludeEvent gives an event its fate when the receiver took it or refused it for itself.
func (o *Outbox) concludeEvent(l *lane, e *entry, refusal error, started, now time.Time) {
	switch {
	case refusal == nil:
		l.counts.Pending--
		l.counts.Delivered++
		o.finish(l, e, started)
	case core.IsPermanent(refusal) && !e.Resync, o.isOver(e, now):
		o.noteDropped(l, refusal, now)
		o.giveUp(l, e, core.Reason(refusal), now)
	default:
		if e.refusals++; e.refusals == 1 {
			e.refused = now
		}

		e.due = now.Add(o.wait(l, e.refusals, refusal, started))
		l.enqueue(e)
	}
}

// isOver reports whether a refused event was sent for long enough. A resync of the runtime is never given
// up: nothing could stand in for it.
func (o *Outbox) isOver(e *entry, now time.Time) bool {
	whole := e.Resync && e.Owner == (types.NamespacedName{})

	return !whole && e.refusals > 0 && now.Sub(e.refused) >= o.opts.GiveUpAfter
}

// giveUp drops a refused event. A resync without owner stands in, as the owner may be the reason. Where
// resyncs are for owners, the resync for its owner does: when that is refused, too, the owner is removed.
// For a resync nothing stands in.
func (o *Outbox) giveUp(l *lane, e *entry, reason string, now time.Time) {
	refused := e.WatchEvent
	l.counts.giveUp(1, reason)

	if o.opts.ResyncOwners && refused.Resync {
		l.removeOwner(refused.Owner)
	}

	if e.next != nil {
		e.replace()
		l.enqueue(e)
	} else {
		o.free(l, e)
	}

	if !refused.Resync {
		o.resync(l, refused.Owner, now)
	}
}

// finish lets the newer event of the key follow, or else the resend, or else frees the key.
func (o *Outbox) finish(l *lane, e *entry, sent time.Time) {
	if e.next != nil {
		e.replace()
		l.enqueue(e)

		return
	}

	if due, again := o.resendAt(e, sent); again && !o.stopped {
		l.scheduleResend(e, due)

		return
	}

	o.free(l, e)
}

// wait returns how long to wait after so many failures in a row. It is 0 when the call began before
// Retry was called, as its answer is about replaced key material.
func (o *Outbox) wait(l *lane, failures int, err error, started time.Time) time.Duration {
	if l.retried.After(started) {
		return 0
	}

	return o.backoff(failures, err)
}

// maxDoublings bounds the exponent of the backoff, so that no shift overflows.
const maxDoublings = 20

// backoff doubles the wait with each failure, half of it random. A longer wait that the receiver asks
// for is kept, plus up to a quarter, so that senders do not come back at the same moment.
func (o *Outbox) backoff(failures int, err error) time.Duration {
	wait := o.opts.MaxBackoff
	if doublings := failures - 1; doublings < maxDoublings {
		wait = min(wait, o.opts.MinBackoff<<doublings)
	}

	wait = wait/2 + o.jitter(wait/2)

	if asked := core.RetryAfter(err); asked > 0 {
		wait = max(wait, asked+o.jitter(asked/4)) //nolint:mnd // A quarter.
	}

	return wait
}

// jitter returns a random part of d.
func (o *Outbox) jitter(d time.Duration) time.Duration {
	return time.Duration(o.opts.Random() * float64(d))
}
