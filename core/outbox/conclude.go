package outbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// concludeAnswer applies the answer to a call to the pause and the size of batches, to the schedule
// of heartbeats, and to each event.
func (l *lane) concludeAnswer(ctx context.Context, c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()

	a := newAnswer(c, time.Now())
	l.receiverChecks = c.receiverChecks
	l.concludeCall(ctx, &a)
	if c.batch.Heartbeat != nil {
		l.concludeHeartbeat(&a)
	}

	for i := range c.entries {
		l.concludeEntry(&a, i)
	}

	if l.isConcurrent() { // Otherwise the dispatcher has made the call.
		signal(l.wake)
	}
	if l.drains {
		signal(l.callEnded)
	}
}

// concludeCall pauses the lane when its manager cannot be reached, and resumes it. A failure of a
// call that began before the pause is the failure that the pause is for, and counts once.
func (l *lane) concludeCall(ctx context.Context, a *answer) {
	l.inFlight--
	if a.probe {
		l.pause.endProbe()
	}
	l.reached = l.reached || a.isTaken()
	l.unknown = l.unknown || errors.Is(a.whole, core.ErrUnknownManager)
	l.concludeSize(a)

	if a.isTaken() || core.IsPermanent(a.whole) {
		l.endPause(a)
		return
	}
	isRefusedHeartbeat := a.whole == nil // Alone: the manager may use a contract without heartbeats.
	isShutdown := ctx.Err() != nil
	if isRefusedHeartbeat || isShutdown || l.pause.beganAfter(a.started) {
		return
	}

	wait := l.pause.noteFailure(&l.opts, a.whole, a.started, a.now)
	l.notePaused(a.whole, wait, a.now)
	l.size.noteFailure(a.elements(), l.pause.failures, a.now)
}

// concludeSize learns from a call how large a batch may be. concludeCall notes calls that fail.
func (l *lane) concludeSize(a *answer) {
	switch {
	case errors.Is(a.whole, core.ErrTooLarge):
		l.size.shrinkLimit(a.elements(), a.now, refusalMemory)
		l.size.large = true
	case a.whole != nil:
	case errors.Is(a.err, core.ErrTooLarge):
		l.size.forgetRefusal() // One event alone: newAnswer has made the error the event's.
	default:
		l.size.noteArrival(a.elements(), a.now)
	}
}

// endPause ends the pause. A heartbeat follows immediately: the control plane may be a new
// process, and a heartbeat of this call reports its events as pending. After a lone heartbeat none
// follows, because each could fail immediately where connections break.
func (l *lane) endPause(a *answer) {
	if !l.pause.isOn() {
		return
	}

	l.noteResumed()
	l.pause.noteSuccess(a.now)
	if !l.schedule.next.IsZero() && len(a.entries) > 0 {
		l.schedule.next = a.now
	}
}

// concludeHeartbeat makes a heartbeat due again that did not arrive. A heartbeat that was refused
// waits for its interval. The last heartbeat is tried once. Then the lane has left (scheduleLast).
func (l *lane) concludeHeartbeat(a *answer) {
	refusal := a.ofHeartbeat()
	isTooLarge := errors.Is(a.whole, core.ErrTooLarge)
	if isTooLarge {
		l.schedule.named = a.named // Nothing of the batch was seen.
	}

	if l.schedule.leaving == left {
		l.schedule.next = time.Time{}
		return
	}

	err := cmp.Or(a.whole, refusal)
	if err == nil {
		return
	}

	mayFitAlone := isTooLarge && len(a.entries) > 0
	isCut := errors.Is(refusal, core.ErrNotSent)
	hasFailed := a.whole != nil && !core.IsPermanent(a.whole)
	mustRepeat := mayFitAlone || isCut || hasFailed
	if mustRepeat {
		l.schedule.next = a.now
		return
	}

	l.warnPaced(a.now, "heartbeat refused", core.ReasonOf(err), slog.Any("error", err))
}

// concludeEntry applies the fate of the event with index i. Until it is delivered or given up, it
// keeps its key and its number. Then a newer event of the key follows. If there is no newer event,
// a delivered one waits for its resend, and a hopeless one frees its key.
func (l *lane) concludeEntry(a *answer, i int) {
	e := a.entries[i]
	switch a.fateOf(i, l.opts.GiveUpAfter) {
	case unread:
		l.enqueueEntry(e)
	case rejected:
		e.alone = true
		e.seen = true
		l.enqueueEntry(e)
	case failed:
		e.seen = true
		l.enqueueEntry(e)
	case unsent: // The call succeeded, but later numbers of it may have arrived.
		e.seen = true
		l.enqueueEntry(e)
	case refused:
		l.postponeEvent(e, a, a.events[i])
		l.enqueueEntry(e)
	case delivered:
		l.noteDelivered(e, a)
		if !l.followNewer(e) {
			l.awaitResend(e, a)
		}
	case hopeless:
		l.giveUp(e, a, a.events[i])
		if !l.followNewer(e) {
			l.freeEntry(e)
		}
	}
}

// postponeEvent makes a refused event due after its own backoff.
func (l *lane) postponeEvent(e *entry, a *answer, refusal error) {
	e.refusals++
	if e.refusals == 1 {
		e.refused = a.now
	}
	wait := l.pause.waitAfter(&l.opts, int(e.refusals), l.opts.MaxBackoff, refusal, a.started)
	e.due = a.now.Add(wait)
}

func (l *lane) noteDelivered(e *entry, a *answer) {
	l.counts.Pending--
	l.counts.Delivered++
	l.noteOwner(e, a.now)
	if e.Resync {
		l.resynced.noteSent(e.Owner, a.started)
	}
}

// awaitResend makes a delivered entry wait for its resend, and frees its key after the last resend.
func (l *lane) awaitResend(e *entry, a *answer) {
	from, due, again := l.resendTimes(e, a.started, a.receiverChecks)
	if !again {
		l.freeEntry(e)
		return
	}
	l.restEntry(e, from, due)
}

// giveUp drops a refused event. A resync replaces it: without owner, as the owner may be the
// reason, or for each owner where resyncs are for owners. Nothing replaces a resync.
func (l *lane) giveUp(e *entry, a *answer, refusal error) {
	isReplaced := !e.Resync && len(l.resyncOwners()) > 0
	l.noteDropped(e, refusal, isReplaced, a.now)
	l.counts.giveUpEvents(1, core.ReasonOf(refusal))

	if e.Resync {
		l.owners.removeOwner(e.Owner)
		delete(l.resynced, e.Owner)
		return
	}

	l.replaceByResync(e.newest, core.IsPermanent(refusal), a.now)
}
