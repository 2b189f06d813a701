package natsjetstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

const (
	// ackWait is the time after which the stream gives a message to another replica. It bounds the
	// delay of messages that a killed replica had taken.
	ackWait       = 10 * time.Second
	readyInterval = 100 * time.Millisecond
	reopenWait    = time.Second
	openTimeout   = 5 * time.Second
	// fetchWait bounds one request for messages, and so the time in which a replica stops.
	fetchWait = 500 * time.Millisecond
)

// serveManager takes the messages of a manager while its handler is ready, until ctx ends. It also
// ends when the connection is closed, which watchConnection reports.
func (c *Consumer) serveManager(ctx context.Context, manager core.Manager) {
	failures := &outage{Consumer: c, manager: manager}
	defer failures.clearFailures()

	for ctx.Err() == nil {
		if c.intake.Ready(manager) != nil {
			failures.clearFailures()
			periodic.Pause(ctx, readyInterval)
			continue
		}

		err := c.serveWhileReady(ctx, failures)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if c.conn.IsClosed() {
			return
		}

		failures.noteFailure(ctx, err)
		periodic.Pause(ctx, reopenWait)
	}
}

// serveWhileReady receives messages until the handler is not ready, which is not an error.
func (c *Consumer) serveWhileReady(ctx context.Context, failures *outage) error {
	pulling, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()

	watching.Go(func() {
		for pulling.Err() == nil && c.intake.Ready(failures.manager) == nil {
			periodic.Pause(pulling, readyInterval)
		}
		stop()
	})

	err := c.pullMessages(pulling, failures)
	if pulling.Err() != nil {
		c.opts.Hooks.Backlog(hook.Backlog{Manager: failures.manager}) // Another replica takes the messages.
		return nil
	}

	return err
}

// pullMessages takes messages until ctx ends or a request for messages fails.
func (c *Consumer) pullMessages(ctx context.Context, failures *outage) error {
	clock := newClock(c.now)
	stream, durable, err := c.prepareManager(ctx, failures.manager, clock)
	if err != nil {
		return err
	}

	c.reportBacklog(failures.manager, clock, stream.CachedInfo())
	queues := c.newQueues(ctx, failures.manager, clock)
	queues.pullAtMost(durable.CachedInfo().Config.MaxRequestBatch)
	defer queues.running.Wait()

	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	queues.running.Go(func() { periodic.Call(working, c.ackWait/extensions, queues.extendHeld) })
	queues.running.Go(func() {
		periodic.Call(working, clockInterval, func() {
			if err := c.measureClock(working, failures.manager, clock, stream); err != nil {
				stop(err)
			}
		})
	})

	for {
		room, err := queues.reserveSlots(working)
		if err != nil {
			return context.Cause(working)
		}
		if err := queues.fetchMessages(working, durable, room); err != nil {
			return fmt.Errorf("natsjetstream: messages for %s: %w", failures.manager, err)
		}

		failures.noteSuccess(ctx)
	}
}

const extensions = 4

// measureClock asks the stream for its time and its backlog. It waits at most clockTimeout. After a
// failure, the last measurement stays. Its error means that another program has changed the stream,
// so that no more messages arrive.
func (c *Consumer) measureClock(
	ctx context.Context, manager core.Manager, clock *clock, stream jetstream.Stream,
) error {
	began := clock.now()
	asking, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()

	info, err := stream.Info(asking)
	if err != nil {
		if ctx.Err() == nil {
			c.paced.WarnContext(ctx,
				"cannot read the clock of the stream leader, so the reported message ages may drift",
				slog.Any("error", err))
		}
		return nil
	}

	clock.learnTime(began, info)
	c.reportBacklog(manager, clock, info)
	return c.checkStream(ctx, manager, &info.Config)
}

// checkStream warns of a stream that may lose messages. Its error means that the stream accepts no
// messages.
func (c *Consumer) checkStream(ctx context.Context, manager core.Manager, config *jetstream.StreamConfig) error {
	if err := checkSubjects(config, manager); err != nil {
		return fmt.Errorf("natsjetstream: stream %s: %w", config.Name, err)
	}
	if !losesNothing(*config) {
		c.paced.WarnContext(ctx,
			"the stream may lose unhandled messages: use the limits and denials of StreamConfig",
			slog.String("stream", config.Name))
	}
	return nil
}

func (c *Consumer) reportBacklog(manager core.Manager, clock *clock, info *jetstream.StreamInfo) {
	var oldest time.Duration
	if info.State.Msgs > 0 {
		oldest = max(clock.ageOf(info.State.FirstTime), 0)
	}

	filled := 0.0
	if limit := info.Config.MaxBytes; limit > 0 {
		filled = float64(info.State.Bytes) / float64(limit)
	}

	c.opts.Hooks.Backlog(hook.Backlog{
		Manager: manager, Messages: info.State.Msgs, Filled: filled, Oldest: oldest,
	})
}

// prepareManager creates the stream and the durable consumer of a manager unless they exist, and
// measures the clock of the server. It updates an existing consumer, but not an existing stream.
func (c *Consumer) prepareManager(
	ctx context.Context, manager core.Manager, clock *clock,
) (stream jetstream.Stream, durable jetstream.Consumer, err error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()

	stream, err = c.findOrCreateStream(ctx, manager, clock)
	if err != nil {
		return nil, nil, fmt.Errorf("natsjetstream: stream %s: %w", streamName(manager), err)
	}

	config := stream.CachedInfo().Config
	if err := c.checkStream(ctx, manager, &config); err != nil {
		return nil, nil, err
	}
	if losesNothing(config) && config.Replicas > 1 && !c.probeStrictJSON(ctx, config.Name) {
		c.paced.WarnContext(ctx,
			"runtimes can move the leader of the stream: use NATS servers with strict JSON",
			slog.String("stream", config.Name))
	}

	durable, err = stream.CreateOrUpdateConsumer(ctx, consumerConfig(manager, c.ackWait))
	if err != nil {
		return nil, nil, fmt.Errorf("natsjetstream: consumer of stream %s: %w", streamName(manager), err)
	}

	return stream, durable, nil
}

// probeStrictJSON sends a request with an unknown field, and reports whether the server refuses it.
// If not, the server also reads an acknowledgement as a request. A runtime can then name a subject
// of the API as the subject of its acknowledgement, which streams cannot deny.
func (c *Consumer) probeStrictJSON(ctx context.Context, stream string) bool {
	subject := jetstream.DefaultAPIPrefix + "STREAM.INFO." + stream
	info, err := c.conn.RequestWithContext(ctx, subject, []byte(`{"unknown":0}`))
	return err != nil || bytes.Contains(info.Data, []byte(`"error":{`))
}

// findOrCreateStream also measures the clock of the stream, so that no message is taken before.
func (c *Consumer) findOrCreateStream(
	ctx context.Context, manager core.Manager, clock *clock,
) (jetstream.Stream, error) {
	began := clock.now()
	stream, err := c.stream.Stream(ctx, streamName(manager))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		began = clock.now()
		stream, err = c.stream.CreateStream(ctx, c.opts.Stream(manager))
	}

	if err != nil {
		return nil, err
	}

	clock.learnTime(began, stream.CachedInfo())
	return stream, nil
}

// queues handles the messages of one manager: messages of one runtime one after the other, and
// messages of different runtimes in parallel. So a runtime that is slow to handle delays itself
// only.
type queues struct {
	*Consumer

	ctx     context.Context //nolint:containedctx // The context of one pull. The pull waits for all queues.
	manager core.Manager
	clock   *clock // The clock of the stream's leader.
	slots   chan struct{}
	// most bounds the messages of one pull. Only the goroutine that pulls uses it.
	most    int
	running sync.WaitGroup

	mu     sync.Mutex
	queues map[core.RuntimeID]*queue
}

type queue struct {
	// handled is the message that is handled since began.
	handled jetstream.Msg
	began   time.Time
	waiting []jetstream.Msg
}

func (c *Consumer) newQueues(ctx context.Context, manager core.Manager, clock *clock) *queues {
	return &queues{
		Consumer: c, ctx: ctx, manager: manager, clock: clock,
		slots: make(chan struct{}, c.opts.MaxInFlight), queues: map[core.RuntimeID]*queue{},
		most: c.opts.MaxInFlight,
	}
}

// pullAtMost takes the limit of a server or of a durable consumer. 0: there is none.
func (q *queues) pullAtMost(limit int) {
	if limit > 0 {
		q.most = min(q.most, limit)
	}
}

// shrinkPulls makes the next pulls smaller if err comes from a server that allows only smaller
// pulls, and reports whether it did. They are at most as large as the server says, or half as large
// as the last.
func (q *queues) shrinkPulls(err error) bool {
	_, text, refused := strings.Cut(err.Error(), exceededBatch)
	if !refused || q.most <= 1 {
		return false
	}

	const half = 2
	limit := 0
	_, _ = fmt.Sscanf(text, " of %d", &limit) // Another text leaves 0.
	if limit < 1 || limit >= q.most {
		limit = q.most / half
	}

	q.most = limit
	return true
}

// exceededBatch is in the answer of a server to a pull of too many messages (status 409).
const exceededBatch = "Exceeded MaxRequestBatch"

// reserveSlots waits for a slot, and returns the number of all that are free. They are taken then.
func (q *queues) reserveSlots(ctx context.Context) (room int, err error) {
	select {
	case q.slots <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}

	for room = 1; ; room++ {
		select {
		case q.slots <- struct{}{}:
		default:
			return room, nil
		}
	}
}

// fetchMessages queues messages that come within a moment, at most one for each reserved slot. So
// there is no message in memory without a slot. After the end of ctx, messages go back to the
// stream.
func (q *queues) fetchMessages(ctx context.Context, from jetstream.Consumer, room int) error {
	// Each queued message keeps its slot and lowers room. The rest of the slots are given back.
	defer func() {
		for range room {
			<-q.slots
		}
	}()

	batch, err := from.Fetch(min(room, q.most), jetstream.FetchMaxWait(fetchWait))
	if err != nil {
		return err
	}

	for msg := range batch.Messages() {
		if ctx.Err() != nil {
			_ = msg.Nak() // Without it, ackWait passes.
			continue
		}

		room--
		q.queueMessage(msg)
	}

	if err := batch.Error(); err != nil && !q.shrinkPulls(err) {
		return err
	}

	return nil
}

// queueMessage queues a message, unless its runtime already has many messages in memory. The stream
// delivers further messages of such a runtime later.
func (q *queues) queueMessage(msg jetstream.Msg) {
	runtime, err := parseSubject(msg.Subject())
	if err == nil && isAcknowledgement(msg) {
		err = errAcknowledgement
	}
	if err != nil {
		q.terminateMessage(&job{msg: msg, began: time.Now()}, q.manager, reasons.Malformed, err)
		<-q.slots
		return
	}

	first, hasRoom := q.appendMessage(runtime, msg)
	if !hasRoom {
		q.deferMessage(runtime, &job{msg: msg, began: time.Now()}, q.manager)
		<-q.slots
		return
	}

	if first {
		q.running.Go(func() { q.handleQueue(runtime, msg) })
	}
}

var errAcknowledgement = errors.New(
	"message is an acknowledgement of the server, redirected by a runtime to this stream")

// isAcknowledgement reports whether a message is not a batch, and nothing waits for an answer. A
// server writes acknowledgements to any subject that a runtime names. They must take no place of
// the runtime of that subject.
func isAcknowledgement(msg jetstream.Msg) bool {
	return len(msg.Headers()) == 0 && !bytes.HasPrefix(bytes.TrimLeft(msg.Data(), " \t\r\n"), []byte("["))
}

// appendMessage reports whether the message is the first one of its runtime, which must be handled
// now, and whether there was room for it.
func (q *queues) appendMessage(runtime core.RuntimeID, msg jetstream.Msg) (first, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()

	own := q.queues[runtime]
	switch {
	case own == nil:
		q.queues[runtime] = &queue{handled: msg, began: time.Now()}
		return true, true
	case len(own.waiting) >= q.runtimeLimit():
		return false, false
	default:
		own.waiting = append(own.waiting, msg)
		return false, true
	}
}

// runtimeLimit returns the number of messages of one runtime that may wait. It leaves half of the
// slots to runtimes that have no message here.
func (q *queues) runtimeLimit() int {
	const half = 2
	return min(q.opts.RuntimeInFlight, q.opts.MaxInFlight/(half*len(q.queues)))
}

// handleQueue handles the messages of a runtime, beginning with msg, until none waits.
func (q *queues) handleQueue(runtime core.RuntimeID, msg jetstream.Msg) {
	for more := true; more; msg, more = q.takeNext(runtime) {
		q.processMessage(q.ctx, runtime, q.manager, newJob(msg, q.clock))
		<-q.slots
	}
}

// takeNext returns the next message of a runtime, and ends its queue if there is none.
func (q *queues) takeNext(runtime core.RuntimeID) (msg jetstream.Msg, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()

	own := q.queues[runtime]
	if len(own.waiting) == 0 {
		delete(q.queues, runtime)
		return nil, false
	}

	own.handled = own.waiting[0]
	own.began = time.Now()
	own.waiting = own.waiting[1:]
	return own.handled, true
}

// extendHeld informs the stream that messages are still handled, or wait here. Otherwise the stream
// would deliver them again.
func (q *queues) extendHeld() {
	for _, msg := range q.heldMessages() {
		_ = msg.InProgress() // Without it, the stream delivers the message again.
	}
}

// heldMessages returns the messages in memory, except for a runtime with a message that has hung
// for longer than it may: another replica may handle them.
func (q *queues) heldMessages() (held []jetstream.Msg) {
	q.mu.Lock()
	defer q.mu.Unlock()

	for _, own := range q.queues {
		if time.Since(own.began) < q.opts.HandleTimeout+q.ackWait {
			held = append(append(held, own.handled), own.waiting...)
		}
	}
	return held
}
