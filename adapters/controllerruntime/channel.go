package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

const (
	// roomWait is the longest wait for room in a channel. The events of one batch share it, because
	// after a wait in vain the next ones do not wait for fullPause.
	roomWait  = 100 * time.Millisecond
	fullPause = time.Second
	// fullEvery is the time between two lines about a full channel.
	fullEvery = time.Minute
)

// ToChannel returns a handler that sends a generic event to a channel for each request that mapFunc
// returns for a delivery. Use it in an operator that has a source.Channel today and keeps it for
// now. Pass the handler to [Listener.Handle]. The object of an event has only a namespace and a
// name.
//
// The channel should have a buffer. While it is full, a sender waits at most 100 ms. The error then
// wraps [core.ErrNotReady], so that the sender keeps the event and sends it again.
//
// Compared with a [Source], an operator with a channel loses this:
//
//   - An event is acknowledged before it is in the workqueue, and the metrics of the workqueue do
//     not count it.
//   - Equal events do not coalesce in the channel, and a loud runtime can fill the channel for all
//     other runtimes.
//   - A resync has the priority of a change, and a resend of a write that was already read is
//     reconciled again.
//   - A runtime that is no longer fresh is not enqueued.
//
// A replica that does not lead would acknowledge events that no controller reads, so the handler
// accepts no events there. A listener of [AddListener] sets Elected of opts. For any other
// listener, set it to the Elected channel of the controller manager: without it, the handler is
// never ready.
func ToChannel(
	events chan<- event.GenericEvent, mapFunc MapFunc[reconcile.Request], opts SourceOptions,
) core.Handler {
	mapper := NewSource(mapFunc, opts)
	return &toChannel{
		events: events, mapper: mapper,
		lines: pacedlog.New(mapper.opts.Logger, fullEvery, "manager"),
	}
}

var (
	_ core.Handler = (*toChannel)(nil)
	_ core.Readier = (*toChannel)(nil)
	_ attachable   = (*toChannel)(nil)

	errNoChannel = errors.New("channel of events is nil")
	errNoElected = fmt.Errorf("%w: ToChannel needs Elected of SourceOptions: set it to mgr.Elected()", core.ErrNotReady)
	errFull      = fmt.Errorf("%w: the channel of events is full", core.ErrNotReady)
)

// toChannel sends the requests of a source to a channel instead of a workqueue.
type toChannel struct {
	events chan<- event.GenericEvent
	// mapper is never started. It has the map function and the options.
	mapper *Source[reconcile.Request]
	lines  *slog.Logger
	// full is the time of the last wait in vain, in nanoseconds since 1970.
	full atomic.Int64
}

// attachTo implements [attachable]. The fleet cannot enqueue into a channel.
func (c *toChannel) attachTo(at *attachment) error {
	if c.mapper.opts.Elected == nil {
		c.mapper.opts.Elected = at.elected
	}
	return c.validate()
}

// hasStarted implements [attachable]: a channel does not show whether a controller reads it.
func (c *toChannel) hasStarted() bool { return true }

// leaderChannel implements [attachable].
func (c *toChannel) leaderChannel() <-chan struct{} { return c.mapper.opts.Elected }

func (c *toChannel) validate() error {
	switch {
	case c.events == nil:
		return errNoChannel
	case c.mapper.mapFunc == nil:
		return errNoMapFunc
	case c.mapper.opts.Elected == nil:
		return errNoElected
	default:
		return nil
	}
}

// Ready implements [core.Readier]. A full channel is not a reason to try another replica.
func (c *toChannel) Ready() error {
	if err := c.validate(); err != nil {
		return err
	}
	if !closed(c.mapper.opts.Elected) {
		return fmt.Errorf("%w: another replica leads", core.ErrNotReady)
	}
	return nil
}

// Handle implements [core.Handler].
func (c *toChannel) Handle(ctx context.Context, d core.Delivery) error {
	sent, err := c.sendRequests(ctx, d)
	c.mapper.opts.Handled(hook.Handled{Delivery: d, Requests: sent, Err: err})
	return err
}

// sendRequests returns the number of requests that the channel has taken.
func (c *toChannel) sendRequests(ctx context.Context, d core.Delivery) (int, error) {
	if err := c.Ready(); err != nil {
		return 0, err
	}

	requests, err := c.mapper.mapRequests(ctx, d)
	if err != nil {
		return 0, err
	}

	for i, r := range requests {
		if err := c.sendEvent(ctx, r); err != nil {
			c.lines.WarnContext(ctx, "the channel is full, so the sender keeps the event: "+
				"pass the channel to source.Channel of a controller, or make the channel larger",
				slog.String("manager", string(d.Manager)), slog.Int("size", cap(c.events)))
			return i, err
		}
	}
	return len(requests), nil
}

// sendEvent waits for room, unless another call has just waited in vain.
func (c *toChannel) sendEvent(ctx context.Context, r reconcile.Request) error {
	object := &metav1.PartialObjectMetadata{}
	object.SetNamespace(r.Namespace)
	object.SetName(r.Name)

	generic := event.GenericEvent{Object: object}
	select {
	case c.events <- generic:
		return nil
	default:
	}

	if time.Since(time.Unix(0, c.full.Load())) < fullPause {
		return errFull
	}

	timer := time.NewTimer(roomWait)
	defer timer.Stop()
	select {
	case c.events <- generic:
		return nil
	case <-ctx.Done():
		return ctx.Err() // As it is.
	case <-timer.C:
		c.full.Store(time.Now().UnixNano())
		return errFull
	}
}
