package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Consumer takes the batches of one or several managers from their streams. It hands the events to
// the handlers. Create one with [NewConsumer] and run Start. All replicas of an operator share the
// work: each message goes to one of them.
//
// A handler may have a method Ready that returns an error. A replica takes messages only while that
// is nil. So with leader election, the leader takes all messages. Without leader election, each
// replica takes a part of them, and [Options].Fleet must be nil.
type Consumer struct {
	conn     *nats.Conn
	stream   jetstream.JetStream
	verifier core.Verifier
	handlers map[core.Manager]core.Handler
	opts     Options
	started  atomic.Bool
	serving  atomic.Bool
	lines    lines
	now      func() time.Time
	// receive is the part that a test replaces.
	receive func(ctx context.Context, d *delivery) verdict
}

var (
	errNoVerifier = errors.New("verifier is nil")
	errNoHandlers = errors.New("there is no handler: want one for each manager")
	errNoHandler  = errors.New("handler is nil")
	errPanic      = errors.New("panic")
)

var errStarted = errors.New("natsjetstream: the consumer was started before: want one Start for each NewConsumer")

// NewConsumer returns a consumer that has copied the handlers. It does not use the network, and the
// caller closes the connection. The error names everything that is missing or invalid.
func NewConsumer(
	conn *nats.Conn, verifier core.Verifier, handlers map[core.Manager]core.Handler, opts Options,
) (*Consumer, error) {
	err := errors.Join(validateHandlers(handlers), opts.validate())
	if conn == nil {
		err = errors.Join(errNoConnection, err)
	}
	if verifier == nil {
		err = errors.Join(errNoVerifier, err)
	}
	if err != nil {
		return nil, fmt.Errorf("natsjetstream: %w", err)
	}
	stream, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("natsjetstream: %w", err)
	}
	c := &Consumer{
		conn: conn, stream: stream, verifier: verifier, handlers: maps.Clone(handlers), opts: opts.withDefaults(),
		now: time.Now,
	}
	c.receive = c.deliver
	return c, nil
}

func validateHandlers(handlers map[core.Manager]core.Handler) error {
	if len(handlers) == 0 {
		return errNoHandlers
	}
	var invalid []error
	for _, manager := range slices.Sorted(maps.Keys(handlers)) {
		if _, err := core.ParseManager(string(manager)); err != nil {
			invalid = append(invalid, err)
		}
		if handlers[manager] == nil {
			invalid = append(invalid, fmt.Errorf("%w: that of manager %q", errNoHandler, manager))
		}
	}
	return errors.Join(invalid...)
}

// NeedLeaderElection returns false: controller-runtime then starts the consumer on every replica.
func (c *Consumer) NeedLeaderElection() bool { return false }

// Ready returns nil while Start runs and the connection is open, and otherwise an error that wraps
// [core.ErrNotReady]. It is for a readiness probe, and does not ask the handlers.
func (c *Consumer) Ready() error {
	if !c.serving.Load() || !c.conn.IsConnected() {
		return fmt.Errorf("%w: there is no connection to a NATS server, or Start does not run", core.ErrNotReady)
	}
	return nil
}

// Start takes messages until ctx ends, and then waits until those that it took are handled. It
// creates a stream or a durable consumer that is missing, and retries while no NATS server answers.
// It can be called once. It fails when the connection is closed, which NATS clients do after some
// errors. It also fails if another Start delivers the resyncs of the fleet for one of the managers.
func (c *Consumer) Start(ctx context.Context) error {
	if !c.started.CompareAndSwap(false, true) {
		return errStarted
	}
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c.serving.Store(true)
	defer c.serving.Store(false)
	c.opts.Logger.InfoContext(ctx, "consumer started", slog.Int("managers", len(c.handlers)))
	var tasks sync.WaitGroup
	tasks.Go(func() { stop(c.watchConnection(running)) })
	for manager, handler := range c.handlers {
		tasks.Go(func() { c.serve(running, manager, handler) })
	}
	if c.opts.Fleet != nil && !c.opts.SharedFleet {
		tasks.Go(func() { stop(c.opts.Fleet.Start(running, c.resyncHandlers())) })
	}
	tasks.Wait()
	c.opts.Logger.InfoContext(ctx, "consumer stopped")
	if ctx.Err() == nil {
		return context.Cause(running)
	}
	return nil
}

// resyncHandlers returns the handlers for the resyncs of the fleet, which retries after an error.
func (c *Consumer) resyncHandlers() map[core.Manager]core.Handler {
	handlers := make(map[core.Manager]core.Handler, len(c.handlers))
	for manager, handler := range c.handlers {
		handlers[manager] = core.HandlerFunc(func(ctx context.Context, d core.Delivery) error {
			return c.handle(ctx, handler, d)
		})
	}
	return handlers
}

// protect turns a panic into an error: the same event may be taken later.
func (c *Consumer) protect(ctx context.Context, call func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = &later{reason: "panic", err: fmt.Errorf("%w: %v", errPanic, cause)}
			c.opts.Logger.LogAttrs(ctx, slog.LevelError, "panic while a message was handled",
				slog.Any("error", err), slog.String("stack", string(debug.Stack())))
		}
	}()
	return call()
}
