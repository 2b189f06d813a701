package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// delivery is a batch with the sender that its subject names.
type delivery struct {
	peer    core.Peer
	manager core.Manager
	handler core.Handler
	batch   core.Batch
}

// verdict is the result of handling a batch.
type verdict struct {
	// err is nil, [core.EventErrors], or the refusal of the batch as a whole.
	err error
	// lost means that this replica takes no events any more: another one must handle the batch.
	lost bool
	// verified means that the verifier let some element pass, and speaks that it let the sender
	// speak for its runtime as a whole.
	verified, speaks bool
	// handed means that the sender has taken the refused events back.
	handed bool
}

// later is an error after which the same event may be taken. It hides that a handler calls it
// permanent: only a refusal of the verifier is final.
type later struct {
	reason string
	after  time.Duration
	err    error
}

func (l *later) Error() string             { return l.err.Error() }
func (l *later) Reason() string            { return l.reason }
func (l *later) RetryAfter() time.Duration { return l.after }

func retryLater(err error) error {
	return &later{reason: core.Reason(err), after: core.RetryAfter(err), err: err}
}

// mismatch is the refusal of a batch that claims another sender.
type mismatch struct{ claimed core.RuntimeID }

func (m *mismatch) Error() string {
	return fmt.Sprintf("the batch claims to come from runtime %.253q", m.claimed)
}
func (m *mismatch) Unwrap() error  { return core.ErrForbidden }
func (m *mismatch) Reason() string { return "source_mismatch" }

// deliver verifies a batch and hands its events to the handler.
func (c *Consumer) deliver(ctx context.Context, d *delivery) verdict {
	if d.batch.Source != "" && d.batch.Source != d.peer.ID {
		return verdict{err: &mismatch{d.batch.Source}}
	}
	v := verdict{}
	failed := core.EventErrors{}
	unverified := c.takeEvents(ctx, d, &v, failed)
	if d.batch.Heartbeat != nil {
		if err := c.takeHeartbeat(ctx, d, &v); err != nil {
			failed[len(d.batch.Events)] = err
		}
	}
	v.err = c.judge(ctx, d, failed, unverified)
	return v
}

// takeEvents adds the events that were not taken to failed. It returns how many the verifier did
// not let pass.
func (c *Consumer) takeEvents(ctx context.Context, d *delivery, v *verdict, failed core.EventErrors) (unverified int) {
	received := time.Now()
	for i := range d.batch.Events {
		event := &d.batch.Events[i].WatchEvent
		if err := c.verify(ctx, d.peer, event); err != nil {
			failed[i] = err
			unverified++
			continue
		}
		v.verified = true
		err := c.handle(ctx, d.handler, core.Delivery{
			Runtime: d.peer.ID, Manager: d.manager, Event: *event, Received: received,
		})
		if err != nil {
			failed[i] = retryLater(err)
			v.lost = v.lost || isLost(d.handler, err)
		}
	}
	return unverified
}

// takeHeartbeat verifies that the sender may speak for its runtime. No handler gets a heartbeat.
func (c *Consumer) takeHeartbeat(ctx context.Context, d *delivery, v *verdict) error {
	if err := c.verify(ctx, d.peer, &core.WatchEvent{Resync: true}); err != nil {
		return err
	}
	v.verified, v.speaks = true, true
	return nil
}

// verify returns a refusal as it is. Every other error of a verifier may change.
func (c *Consumer) verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	err := c.protect(ctx, func() error { return c.verifier.Verify(ctx, peer, event) })
	if err == nil || isRefusal(err) {
		return err
	}
	return retryLater(err)
}

func (c *Consumer) handle(ctx context.Context, handler core.Handler, d core.Delivery) error {
	return c.protect(ctx, func() error { return handler.Handle(ctx, d) })
}

// isLost reports whether an error of a handler belongs to the replica, and not to the event.
func isLost(handler core.Handler, err error) bool {
	return errors.Is(err, core.ErrNotReady) && ready(handler) != nil
}

func isRefusal(err error) bool {
	return errors.Is(err, core.ErrForbidden) || errors.Is(err, core.ErrUnauthenticated)
}

// judge returns the result for a batch. The refusal of all elements is that of the sender, if the
// verifier also refuses a resync of its runtime.
func (c *Consumer) judge(ctx context.Context, d *delivery, failed core.EventErrors, unverified int) error {
	elements := len(d.batch.Events)
	if d.batch.Heartbeat != nil {
		elements++
	}
	switch {
	case len(failed) == 0:
		return nil
	case len(failed) < elements || unverified < len(d.batch.Events):
		return failed
	}
	if err := c.verify(ctx, d.peer, &core.WatchEvent{Resync: true}); isRefusal(err) {
		return err
	}
	return failed
}

// observe hands a batch to the fleet. Refused events that stay with the stream are left out, so
// that the fleet misses their numbers.
func (c *Consumer) observe(d *delivery, v *verdict) {
	if c.opts.Fleet == nil || !v.verified || v.lost {
		return
	}
	refused, _ := errors.AsType[core.EventErrors](v.err)
	observed := d.batch
	if !v.speaks {
		observed.Heartbeat = nil
	}
	if len(refused) > 0 && !v.handed {
		observed.Events, refused = without(d.batch.Events, refused), nil
	}
	c.opts.Fleet.Observe(d.peer, d.manager, observed, refused)
}

func without(events []core.Numbered, refused core.EventErrors) (taken []core.Numbered) {
	for i := range events {
		if refused[i] == nil {
			taken = append(taken, events[i])
		}
	}
	return taken
}
