package outbox

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// dispatch returns after the last call of the forwarder has.
func (l *lane) dispatch(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	slots := make(chan struct{}, l.opts.InFlight)
	for {
		slots <- struct{}{} // The end of ctx ends the calls, and so frees a slot.
		c, ok := l.next(ctx)
		if !ok {
			return
		}
		calls.Go(func() {
			defer func() { <-slots }()
			l.send(ctx, c)
		})
	}
}

// call is one call of the forwarder, with the entries that its batch carries. The goroutine of the
// call owns it. The entries belong to the lane.
type call struct {
	entries []*entry
	batch   core.Batch
	probe   bool      // the attempt after a failure
	named   uint64    // by the last heartbeat before this one, if the batch has one
	started time.Time // under the lock, so that it is before or after a pause
	err     error
	checked bool // the answer names a check of the receiver after Settle or later.
}

func (c *call) elements() int {
	if c.batch.Heartbeat == nil {
		return len(c.entries)
	}
	return len(c.entries) + 1
}

func (l *lane) next(ctx context.Context) (c call, ok bool) {
	for ctx.Err() == nil {
		l.hastenIfChanged()
		c, wait := l.nextCall()
		if !c.batch.IsEmpty() {
			l.fill(c.batch.Heartbeat)
			return c, true
		}
		if l.pulse.number > 0 && (wait < 0 || wait > checkEvery) {
			wait = checkEvery // Also in a pause: calls of Heartbeat show that the lane goes on.
		}
		if !l.rest(ctx, wait) {
			return call{}, false
		}
	}
	return call{}, false
}

// rest waits for the time to pass, for a token or for the end of ctx. A negative wait has no end
// of its own. It reports whether the lane is still open.
func (l *lane) rest(ctx context.Context, wait time.Duration) (open bool) {
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

func (l *lane) nextCall() (c call, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.resendDue(now)
	entries, beat, wait := l.take(l.opts.MaxBatch, now)
	c = call{entries: entries, batch: core.Batch{Epoch: l.opts.Epoch}, probe: l.probing, started: now}
	for _, e := range entries {
		c.batch.Events = append(c.batch.Events, l.prepare(e, now))
	}
	if beat {
		c.named = l.pulse.named
		c.batch.Heartbeat = l.heartbeat(now)
	}
	return c, wait
}

func (l *lane) prepare(e *entry, now time.Time) core.Numbered {
	if e.merge(now) {
		l.noteSize(e, e.size())
		l.counts.Coalesced++
		l.counts.Pending--
	}
	if at, again := l.opts.resendAt(e, e.sent); again && !at.After(now) {
		e.renew() // Its resend, too. It may have arrived before.
	}
	if l.opts.Epoch != "" && e.ID == "" {
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

func (l *lane) send(ctx context.Context, c call) {
	began := time.Now()
	c.err = l.forward(ctx, c.batch)
	took := time.Since(began)
	c.checked = l.opts.RecheckAfter(l.manager) >= max(l.opts.Settle, 1)
	l.conclude(ctx, c)
	l.opts.Hooks.Attempted(hook.Attempt{Manager: l.manager, Events: len(c.batch.Events), Took: took, Err: c.err})
}

func (l *lane) forward(ctx context.Context, batch core.Batch) error {
	ctx, cancel := context.WithTimeout(ctx, l.opts.ForwardTimeout)
	defer cancel()
	return l.forwarder.Forward(ctx, l.manager, batch)
}
