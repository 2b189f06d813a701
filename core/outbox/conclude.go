package outbox

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func (l *lane) conclude(ctx context.Context, c call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.checked = c.checked
	events, whole := c.split()
	l.concludeCall(ctx, c, whole, now)
	if c.batch.Heartbeat != nil {
		l.concludeHeartbeat(&c, whole, events[len(c.entries)], now)
	}
	for i, e := range c.entries {
		l.concludeEntry(e, &c, whole, events[i], now)
	}
	signal(l.wake)
	signal(l.emptied)
}

// split sorts the answer to a call: by event, or one error for all. A batch of which nothing was
// sent failed as a whole. A permanent error of a batch of one is that of its event.
func (c *call) split() (events core.EventErrors, whole error) {
	switch {
	case c.err == nil:
		return nil, nil
	case errors.As(c.err, &events) && !c.isUnsent(events):
		return events, nil
	case len(c.entries) == 1 && c.batch.Heartbeat == nil && core.IsPermanent(c.err):
		return core.EventErrors{0: c.err}, nil
	case events != nil:
		return nil, core.ErrNotSent
	default:
		return nil, c.err
	}
}

func (c *call) isUnsent(events core.EventErrors) bool {
	n := len(c.entries)
	if c.batch.Heartbeat != nil {
		n++
	}
	for i := range n {
		if !errors.Is(events[i], core.ErrNotSent) {
			return false
		}
	}
	return true
}

// concludeCall pauses the lane when its manager cannot be reached, and resumes it. A failure of a
// call that began before the pause is the failure that the pause is for, and counts once.
func (l *lane) concludeCall(ctx context.Context, c call, whole error, now time.Time) {
	l.inFlight--
	l.probing = l.probing && !c.probe
	l.reached = l.reached || c.isTaken(whole)
	l.unknown = l.unknown || errors.Is(whole, core.ErrUnknownManager)
	l.concludeSize(&c, whole, now)
	switch {
	case core.IsPermanent(whole), c.isTaken(whole):
		l.resume(c, now)
	case whole == nil, ctx.Err() != nil, c.started.Before(l.paused):
	default:
		l.pause(whole, c.started, now)
		l.size.fail(c.elements(), l.failures, now)
	}
}

// concludeSize learns from a call how large a batch may be. Its failures are counted by pause.
func (l *lane) concludeSize(c *call, whole error, now time.Time) {
	switch {
	case errors.Is(whole, core.ErrTooLarge):
		l.size.shrink(c.elements(), now, refusalMemory)
		l.size.large = true
	case whole != nil:
	case errors.Is(c.err, core.ErrTooLarge):
		l.size.forgive() // One event alone: split has made the error that of the event.
	default:
		l.size.grow(c.elements(), now)
	}
}

// isTaken reports whether the manager took a batch. One that refuses a lone heartbeat may know
// none.
func (c *call) isTaken(whole error) bool { return whole == nil && (len(c.entries) > 0 || c.err == nil) }

// resume ends the pause. A heartbeat follows immediately: the control plane may be a new
// process, and a heartbeat of this call reports its events as pending. After a lone heartbeat none
// follows, because each could fail immediately where connections break.
func (l *lane) resume(c call, now time.Time) {
	if l.failures == 0 {
		return
	}
	l.noteResumed()
	l.failures, l.probing = 0, false
	if !l.pulse.next.IsZero() && len(c.entries) > 0 {
		l.pulse.next = now
	}
}

// pause makes the lane wait. The failures before [Outbox.Retry] do not count.
func (l *lane) pause(err error, started, now time.Time) {
	if l.failures == 0 || !l.paused.After(l.retried) {
		l.failing, l.failures = now, 0
	}
	l.failures++
	wait := l.waitAfter(l.failures, l.opts.longestPause(err, now.Sub(l.failing)), err, started)
	l.paused, l.resumes = now, now.Add(wait)
	l.notePaused(err, wait, now)
}

const (
	// pausePart is the divisor of the part of an outage that the pause after it may take.
	pausePart = 8
	// shortOutage is the length that each shorter outage counts as.
	shortOutage = 16 * time.Second
)

// longestPause bounds the pause of a lane that has failed for so long. A receiver that is not ready
// may wait for the election of a leader, which takes 15 to 18 s. A pause that doubles would last as
// long again. Without an answer MaxBackoff remains the bound, because each sender then needs a
// handshake, and handshakes must not come together.
func (o Options) longestPause(err error, failing time.Duration) time.Duration {
	if !errors.Is(err, core.ErrNotReady) {
		return o.MaxBackoff
	}
	return min(o.MaxBackoff, max(failing, shortOutage)/pausePart)
}

// concludeEntry gives one event its fate. An event that did not reach the receiver keeps its place.
func (l *lane) concludeEntry(e *entry, c *call, whole, refusal error, now time.Time) {
	switch {
	case whole != nil:
		e.alone = e.alone || core.IsPermanent(whole) && !errors.Is(whole, core.ErrTooLarge)
		e.seen = e.seen || !errors.Is(whole, core.ErrTooLarge)
		l.enqueue(e)
	case errors.Is(refusal, core.ErrNotSent):
		e.seen = true // Later numbers of its batch may have arrived.
		l.enqueue(e)
	case refusal == nil:
		l.counts.Pending--
		l.counts.Delivered++
		l.finish(e, c, now)
	default:
		l.refuse(e, refusal, c.started, now)
	}
}

func (l *lane) refuse(e *entry, refusal error, started, now time.Time) {
	if e.isOver(refusal, l.opts.GiveUpAfter, now) {
		l.giveUp(e, refusal, now)
		return
	}
	e.refusals++
	if e.refusals == 1 {
		e.refused = now
	}
	e.due = now.Add(l.waitAfter(int(e.refusals), l.opts.MaxBackoff, refusal, started))
	l.enqueue(e)
}

// isOver reports whether an event is to be given up. A resync of the runtime never is, because
// nothing would stand in. One for an owner is, after a permanent error.
func (e *entry) isOver(refusal error, limit time.Duration, now time.Time) bool {
	if core.IsPermanent(refusal) {
		return !e.Resync || e.Owner != (types.NamespacedName{})
	}
	return !e.Resync && e.refusals > 0 && now.Sub(e.refused) >= limit
}

// giveUp drops a refused event. A resync stands in for it: without owner, as the owner may be the
// reason, or for each owner where resyncs are for owners. Nothing stands in for a resync.
func (l *lane) giveUp(e *entry, refusal error, now time.Time) {
	l.noteDropped(e, refusal, now)
	l.counts.giveUp(1, core.ReasonOf(refusal))
	if e.Resync {
		l.owners.remove(e.Owner)
		delete(l.resynced, e.Owner)
	} else {
		l.standIn(e.newest, core.IsPermanent(refusal), now)
	}
	if e.next == nil {
		l.free(e)
		return
	}
	e.replace()
	l.noteSize(e, e.size())
	l.enqueue(e)
}

// finish lets the newer event of the key follow, or else the resend, or else frees the key.
func (l *lane) finish(e *entry, c *call, now time.Time) {
	sent := c.started
	l.noteOwner(e, now)
	if e.Resync {
		l.noteResynced(e.Owner, sent)
	}
	if e.next != nil {
		e.replace()
		l.noteSize(e, e.size())
		l.enqueue(e)
		return
	}
	if settled := e.newest.Add(l.opts.Settle); !c.checked && !e.Resync && settled.After(sent) {
		l.scheduleResend(e, settled)
		return
	}
	if due, again := l.opts.resendAt(e, sent); again {
		l.scheduleResend(e, l.onGrid(due))
		return
	}
	l.free(e)
}

// waitAfter returns how long to wait after so many failures in a row. It is 0 when the call began
// before Retry was called, as its answer is about replaced key material.
func (l *lane) waitAfter(failures int, longest time.Duration, err error, started time.Time) time.Duration {
	if l.retried.After(started) {
		return 0
	}
	return l.opts.backoff(failures, longest, err)
}

// maxDoublings bounds the exponent of the backoff, so that no shift overflows.
const maxDoublings = 20

// backoff doubles the wait with each failure, up to longest. Half of it is random. A longer wait
// that the receiver asks for is kept. Up to a quarter is added, so that senders do not come back at
// the same moment.
func (o Options) backoff(failures int, longest time.Duration, err error) time.Duration {
	wait := longest
	if doublings := failures - 1; doublings < maxDoublings {
		wait = min(wait, o.MinBackoff<<doublings)
	}
	wait = wait/2 + o.jitter(wait/2)
	if asked := core.RetryAfter(err); asked > 0 {
		wait = max(wait, asked+o.jitter(asked/4))
	}
	return wait
}

func (o Options) jitter(d time.Duration) time.Duration {
	return time.Duration(o.Random() * float64(d))
}
