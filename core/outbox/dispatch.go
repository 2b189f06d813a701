package outbox

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// dispatchCalls calls the forwarder until ctx ends or the lane is evicted. It returns after the
// last call has.
func (l *lane) dispatchCalls(ctx context.Context) {
	if !l.isConcurrent() {
		l.dispatchInTurn(ctx)
		return
	}

	var calls sync.WaitGroup
	defer calls.Wait()

	slots := make(chan struct{}, l.opts.InFlight)
	for {
		slots <- struct{}{} // The end of ctx ends the calls, and so frees a slot.
		c, ok := l.awaitCall(ctx)
		if !ok {
			return
		}

		calls.Go(func() {
			defer func() { <-slots }()
			l.makeCall(ctx, &c)
		})
	}
}

// dispatchInTurn makes one call after the other. A goroutine for each would cost a stack, and two
// changes of the running thread.
func (l *lane) dispatchInTurn(ctx context.Context) {
	for {
		c, ok := l.awaitCall(ctx)
		if !ok {
			return
		}
		l.makeCall(ctx, &c)
	}
}

// awaitCall waits for something to send. It reports false when the lane ends.
func (l *lane) awaitCall(ctx context.Context) (c call, ok bool) {
	for ctx.Err() == nil {
		l.hastenIfChanged()
		c, wait := l.nextCall()
		if !c.batch.IsEmpty() {
			l.fillHeartbeat(c.batch.Heartbeat)
			return c, true
		}

		if l.schedule.number > 0 { // Also in a pause: calls of Heartbeat show that the lane goes on.
			wait = soonest(wait, checkEvery)
		}
		if !l.sleep(ctx, wait) {
			return call{}, false
		}
	}

	return call{}, false
}

// sleep waits for the time to pass, for a token or for the end of ctx. A negative wait never ends
// by time. It reports whether the lane is still open.
func (l *lane) sleep(ctx context.Context, wait time.Duration) (open bool) {
	var passed <-chan time.Time
	if wait >= 0 {
		passed = time.After(wait)
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

// nextCall makes a call of the elements that are due. If there are none, its batch is empty, and it
// returns how long to wait, negative without end.
func (l *lane) nextCall() (c call, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()

	now := time.Now()
	l.resendDue(now)
	entries, withHeartbeat, wait := l.takeBatch(l.opts.MaxBatch, now)
	l.plan.noteSleep(now, wait)

	c = call{entries: entries, batch: core.Batch{Epoch: l.opts.Epoch}, probe: l.pause.probing, started: now}
	c.batch.Events = slices.Grow(c.batch.Events, len(entries))
	for _, e := range entries {
		c.batch.Events = append(c.batch.Events, l.prepareEvent(e, now))
	}

	if withHeartbeat {
		c.named = l.schedule.named
		c.batch.Heartbeat = l.nextHeartbeat(now)
	}
	return c, wait
}

// prepareEvent merges the newer event of an entry into it, and gives it the number and the ID with
// which it travels.
func (l *lane) prepareEvent(e *entry, now time.Time) core.Numbered {
	if e.mergeNewer(now) {
		l.noteSize(e, e.size())
		l.counts.Coalesced++
		l.counts.Pending--
	}

	if l.opts.isResendDue(e, now) {
		e.renewID() // It may have arrived before, and this attempt is also its resend.
	}
	if l.opts.Epoch != "" && e.ID == "" {
		l.numberEvent(e, now)
	}
	return e.Numbered
}

func (l *lane) makeCall(ctx context.Context, c *call) {
	began := time.Now()
	c.err = l.forwardBatch(ctx, c.batch)
	took := time.Since(began)

	c.receiverChecks = l.opts.RecheckAfter(l.manager) >= max(l.opts.Settle, 1)
	l.concludeAnswer(ctx, c)
	l.opts.Hooks.Attempted(hook.Attempt{Manager: l.manager, Events: len(c.batch.Events), Took: took, Err: c.err})
}

func (l *lane) forwardBatch(ctx context.Context, batch core.Batch) error {
	ctx, cancel := context.WithTimeout(ctx, l.opts.ForwardTimeout)
	defer cancel()
	return l.forwarder.Forward(ctx, l.manager, batch)
}
