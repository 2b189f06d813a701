package natsjetstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// ackWait is the time after which the stream gives a message to another replica. It bounds the
	// delay of messages that a killed replica had taken.
	ackWait = 10 * time.Second
	// readyInterval is the time between two questions whether a handler is ready.
	readyInterval = 100 * time.Millisecond
	// reopenWait is the wait after a failure to reach the stream.
	reopenWait = time.Second
	// openTimeout bounds one attempt to open a stream and its durable consumer.
	openTimeout = 5 * time.Second
	// fetchWait bounds one request for messages, and so the time in which a replica stops.
	fetchWait = 500 * time.Millisecond
)

// serve takes the messages of one manager until ctx ends or the connection is closed, which
// watchConnection reports.
func (c *Consumer) serve(ctx context.Context, manager core.Manager) {
	out := &outage{Consumer: c, manager: manager}
	for c.waitReady(ctx, manager) {
		err := c.serveWhileReady(ctx, out)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if c.conn.IsClosed() {
			return
		}
		out.began(ctx, err)
		_ = sleep(ctx, reopenWait)
	}
}

// waitReady reports false when ctx ends first.
func (c *Consumer) waitReady(ctx context.Context, manager core.Manager) bool {
	for ctx.Err() == nil {
		if c.intake.Ready(manager) == nil {
			return true
		}
		_ = sleep(ctx, readyInterval)
	}
	return false
}

// sleep returns the error of a context that ends first.
func sleep(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serveWhileReady takes messages until the handler is not ready, ctx ends or the stream fails.
func (c *Consumer) serveWhileReady(ctx context.Context, out *outage) error {
	pulling, stop := context.WithCancel(ctx)
	defer stop()
	var watching sync.WaitGroup
	watching.Go(func() {
		for pulling.Err() == nil && c.intake.Ready(out.manager) == nil {
			_ = sleep(pulling, readyInterval)
		}
		stop()
	})
	err := c.pull(pulling, out)
	if pulling.Err() != nil {
		err = nil
	}
	stop()
	watching.Wait()
	return err
}

// pull takes messages until ctx ends or the stream fails, and waits until those are handled.
func (c *Consumer) pull(ctx context.Context, out *outage) error {
	clock := newClock(c.now)
	stream, durable, err := c.open(ctx, out.manager, clock)
	if err != nil {
		return err
	}
	c.reportBacklog(out.manager, clock, stream.CachedInfo())
	defer c.opts.Hooks.Backlog(out.manager, 0, 0, 0) // Another replica takes the messages.
	queues := c.newQueues(ctx, out.manager, clock)
	defer queues.running.Wait()
	stopExtending := queues.extendEach(c.ackWait / extensions)
	defer stopExtending()
	for {
		c.measure(ctx, out.manager, clock, stream)
		room, err := queues.reserve(ctx)
		if err != nil {
			return err
		}
		if err := queues.fetch(ctx, durable, room); err != nil {
			return fmt.Errorf("natsjetstream: messages for %s: %w", out.manager, err)
		}
		out.ended(ctx)
	}
}

// extensions is the number of times that a message is extended within ackWait.
const extensions = 4

// measure measures the clock and the backlog of a stream, and logs why it cannot, at most once a
// minute.
func (c *Consumer) measure(ctx context.Context, manager core.Manager, clock *clock, stream jetstream.Stream) {
	info, err := clock.sync(ctx, stream)
	if info != nil {
		c.reportBacklog(manager, clock, info)
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	c.paced.WarnContext(ctx, "the stream does not return its time, so the age of messages drifts",
		slog.Any("error", err))
}

func (c *Consumer) reportBacklog(manager core.Manager, clock *clock, info *jetstream.StreamInfo) {
	var oldest time.Duration
	if info.State.Msgs > 0 {
		oldest = max(clock.age(info.State.FirstTime), 0)
	}
	filled := 0.0
	if limit := info.Config.MaxBytes; limit > 0 {
		filled = float64(info.State.Bytes) / float64(limit)
	}
	c.opts.Hooks.Backlog(manager, info.State.Msgs, filled, oldest)
}

// open returns the stream of a manager and its durable consumer. It creates those that are missing.
func (c *Consumer) open(
	ctx context.Context, manager core.Manager, clock *clock,
) (stream jetstream.Stream, durable jetstream.Consumer, err error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if stream, err = c.openStream(ctx, manager, clock); err != nil {
		return nil, nil, fmt.Errorf("natsjetstream: stream %s: %w", streamName(manager), err)
	}
	if config := stream.CachedInfo().Config; !losesNothing(config) {
		c.paced.WarnContext(ctx,
			"stream may lose messages that were not handled, want the limits and denials of StreamConfig",
			slog.String("stream", config.Name))
	} else if config.Replicas > 1 && !c.isStrict(ctx, config.Name) {
		c.paced.WarnContext(ctx,
			"runtimes can change the leader of the stream, want NATS servers with strict JSON",
			slog.String("stream", config.Name))
	}
	if durable, err = stream.CreateOrUpdateConsumer(ctx, consumerConfig(manager, c.ackWait)); err != nil {
		return nil, nil, fmt.Errorf("natsjetstream: consumer of stream %s: %w", streamName(manager), err)
	}
	return stream, durable, nil
}

// isStrict reports whether the server refuses a request with an unknown field. Another server takes
// an acknowledgement that a runtime directs to the API for a request, which streams cannot deny.
func (c *Consumer) isStrict(ctx context.Context, stream string) bool {
	subject := jetstream.DefaultAPIPrefix + "STREAM.INFO." + stream
	info, err := c.conn.RequestWithContext(ctx, subject, []byte(`{"unknown":0}`))
	return err != nil || bytes.Contains(info.Data, []byte(`"error":{`))
}

// openStream also measures the clock of the stream, so that no message is taken before.
func (c *Consumer) openStream(
	ctx context.Context, manager core.Manager, clock *clock,
) (jetstream.Stream, error) {
	began := clock.now()
	stream, err := c.stream.Stream(ctx, streamName(manager))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		began = clock.now()
		stream, err = c.stream.CreateStream(ctx, c.opts.Stream(manager))
	}
	if err == nil {
		clock.learn(began, stream.CachedInfo())
	}
	return stream, err
}
