package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

var errStarted = errors.New("natsjetstream: consumer has already been started: call Start once for each NewConsumer")

// NewConsumer returns a consumer with a copy of handlers. It does not use the network, and the
// caller closes the connection. The error names everything that is missing or invalid.
func NewConsumer(
	conn *nats.Conn, verifier core.Verifier, handlers map[core.Manager]core.Handler, opts Options,
) (*Consumer, error) {
	opts = opts.withDefaults()
	in, err := intake.New(verifier, handlers, opts.ofIntake())
	err = errors.Join(err, option.NotNegative("Options.GiveUpAfter", opts.GiveUpAfter))

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
	return resultOf(c.intake.Receive(ctx, r))
}

// NeedLeaderElection returns false, so that controller-runtime starts the consumer on every
// replica.
func (c *Consumer) NeedLeaderElection() bool { return false }

// Ready returns nil while Start runs, the connection is open and each stream lets this replica take
// messages. Otherwise it returns an error that wraps [core.ErrNotReady], with the text of the
// server's error. Use it as a readiness probe. It does not check whether the handlers are ready.
func (c *Consumer) Ready() error {
	if !c.serving.Load() || !c.conn.IsConnected() {
		return fmt.Errorf("%w: there is no connection to a NATS server, or Start does not run", core.ErrNotReady)
	}
	if err := c.intake.RevocationsReady(); err != nil {
		return err
	}
	if problem := c.problems.asError(); problem != nil {
		return fmt.Errorf("%w: %w", core.ErrNotReady, problem)
	}
	return nil
}

// Start takes messages until ctx ends, and then waits until the messages that it took are handled.
// It creates a missing stream or durable consumer and retries while no NATS server answers. Start
// can be called only once. It fails if the connection is closed, which NATS clients do after some
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
	tasks.Go(func() { c.intake.FollowRevocations(running, func(*intake.RevocationList) {}) })

	for _, manager := range c.managers {
		tasks.Go(func() { c.serveManager(running, manager) })
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
