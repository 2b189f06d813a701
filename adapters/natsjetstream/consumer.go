package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

// Consumer takes the batches of one or several managers from their streams. It hands the events to
// the handlers. Create one with [NewConsumer] and run Start. All replicas of an operator share the
// work: each message goes to one of them.
//
// A handler may be a [core.Readier]. A replica takes messages only while its Ready returns nil.
// With leader election, the leader therefore takes all messages. Without leader election, each
// replica takes a part of them, and [Options].Fleet must be nil.
type Consumer struct {
	conn    *nats.Conn
	stream  jetstream.JetStream
	intake  *intake.Intake
	opts    Options
	started atomic.Bool
	serving atomic.Bool
	paced   *slog.Logger // for lines that a runtime can cause without end
	returns returns
	partial partial
	// managers have a handler.
	managers []core.Manager
	now      func() time.Time
	ackWait  time.Duration
	// receive is the part that a test replaces.
	receive func(ctx context.Context, r *intake.Request) result
}

// result is the result of receiving a batch: nil, [core.EventErrors] or the failure of all of it,
// and the side that a failure of all of it belongs to.
type result struct {
	err   error
	fault intake.Fault
}

var errStarted = errors.New("natsjetstream: the consumer was started before: want one Start for each NewConsumer")

// NewConsumer returns a consumer that has copied the handlers. It does not use the network, and the
// caller closes the connection. The error names everything that is missing or invalid.
func NewConsumer(
	conn *nats.Conn, verifier core.Verifier, handlers map[core.Manager]core.Handler, opts Options,
) (*Consumer, error) {
	opts = opts.withDefaults()
	in, err := intake.New(verifier, handlers, opts.ofIntake())
	err = errors.Join(err, opts.validate())
	if conn == nil {
		err = errors.Join(errNoConnection, err)
	}
	if err != nil {
		return nil, fmt.Errorf("natsjetstream: %w", err)
	}
	stream, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("natsjetstream: %w", err)
	}
	c := &Consumer{
		conn: conn, stream: stream, intake: in, opts: opts, now: time.Now, ackWait: ackWait,
		returns: newReturns(opts.MaxInFlight), managers: slices.Sorted(maps.Keys(handlers)),
		paced: pacedlog.New(opts.Logger, time.Minute, "reason", "stream"),
	}
	c.receive = c.receiveBatch
	return c, nil
}

func (c *Consumer) receiveBatch(ctx context.Context, r *intake.Request) result {
	v := c.intake.Receive(ctx, r)
	if v.Whole != nil {
		return result{v.Whole, v.Whole.Fault}
	}
	return result{err: v.Err()}
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
	c.opts.Logger.InfoContext(ctx, "consumer started", slog.Int("managers", len(c.managers)))
	keepIntake := context.AfterFunc(running, c.intake.Stop)
	defer keepIntake()
	var tasks sync.WaitGroup
	tasks.Go(func() { stop(c.watchConnection(running)) })
	for _, manager := range c.managers {
		tasks.Go(func() { c.serve(running, manager) })
	}
	if c.opts.Fleet != nil && !c.opts.SharedFleet {
		tasks.Go(func() { stop(c.intake.DeliverResyncs(running)) })
	}
	tasks.Wait()
	c.opts.Logger.InfoContext(ctx, "consumer stopped")
	if ctx.Err() == nil {
		return context.Cause(running)
	}
	return nil
}
