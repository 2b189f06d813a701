package natsjetstream

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// queues handle the messages of one manager: those of a runtime one after the other, those of
// different runtimes side by side. So a runtime that is slow to handle delays itself only.
type queues struct {
	*Consumer

	ctx     context.Context //nolint:containedctx // That of one pull, which waits for all queues.
	manager core.Manager
	clock   *clock // That of the leader of the stream.
	slots   chan struct{}
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
	}
}

// reserve waits for a slot, and returns the number of all that are free. They are taken then.
func (q *queues) reserve(ctx context.Context) (room int, err error) {
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

// fetch queues messages that come within a moment, at most one for each reserved slot. So there is
// no message in memory without a slot. After the end of ctx, messages go back to the stream.
func (q *queues) fetch(ctx context.Context, from jetstream.Consumer, room int) error {
	defer func() {
		for range room {
			<-q.slots
		}
	}()
	batch, err := from.Fetch(room, jetstream.FetchMaxWait(fetchWait))
	if err != nil {
		return err
	}
	for msg := range batch.Messages() {
		if ctx.Err() != nil {
			_ = msg.Nak() // Without it, ackWait passes.
			continue
		}
		room--
		q.add(msg)
	}
	return batch.Error()
}

// add queues a message that has a slot. A runtime with too many messages gets the further ones
// later.
func (q *queues) add(msg jetstream.Msg) {
	runtime, err := parseSubject(msg.Subject())
	if err == nil && isAcknowledgement(msg) {
		err = errAcknowledgement
	}
	if err != nil {
		q.terminate(&job{msg: msg, began: time.Now()}, q.manager, reasons.Malformed, err)
		<-q.slots
		return
	}
	switch q.enqueue(runtime, msg) {
	case tooMany:
		q.deferred(runtime, &job{msg: msg, began: time.Now()}, q.manager)
		<-q.slots
	case first:
		q.running.Go(func() { q.work(runtime, msg) })
	case queued:
	}
}

var errAcknowledgement = errors.New("message is an acknowledgement of the server, which a runtime has directed here")

// isAcknowledgement reports whether a message is no batch, and nothing waits for an answer. A
// server writes acknowledgements to any subject that a runtime names. They must take no place of
// the runtime of that subject.
func isAcknowledgement(msg jetstream.Msg) bool {
	return len(msg.Headers()) == 0 && !bytes.HasPrefix(bytes.TrimLeft(msg.Data(), " \t\r\n"), []byte("["))
}

type place int

const (
	first place = iota
	queued
	tooMany
)

func (q *queues) enqueue(runtime core.RuntimeID, msg jetstream.Msg) place {
	q.mu.Lock()
	defer q.mu.Unlock()
	own := q.queues[runtime]
	switch {
	case own == nil:
		q.queues[runtime] = &queue{handled: msg, began: time.Now()}
		return first
	case len(own.waiting) >= q.limit():
		return tooMany
	default:
		own.waiting = append(own.waiting, msg)
		return queued
	}
}

// limit returns how many messages of one runtime may wait. All runtimes together leave half of the
// slots to those that have no message here.
func (q *queues) limit() int {
	const half = 2
	return min(q.opts.RuntimeInFlight, q.opts.MaxInFlight/(half*len(q.queues)))
}

func (q *queues) work(runtime core.RuntimeID, msg jetstream.Msg) {
	for more := true; more; msg, more = q.following(runtime) {
		q.process(q.ctx, runtime, q.manager, newJob(msg, q.clock))
		<-q.slots
	}
}

func (q *queues) following(runtime core.RuntimeID) (msg jetstream.Msg, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	own := q.queues[runtime]
	if len(own.waiting) == 0 {
		delete(q.queues, runtime)
		return nil, false
	}
	own.handled, own.began, own.waiting = own.waiting[0], time.Now(), own.waiting[1:]
	return own.handled, true
}

// extendEach informs the stream in each interval that messages are still handled, or wait here.
// Otherwise the stream would deliver them again. stop must be called.
func (q *queues) extendEach(interval time.Duration) (stop func()) {
	ctx, stop := context.WithCancel(context.Background())
	q.running.Go(func() {
		for sleep(ctx, interval) == nil {
			for _, msg := range q.held() {
				_ = msg.InProgress() // Without it, the stream delivers the message again.
			}
		}
	})
	return stop
}

// held returns the messages in memory, except those of a runtime with a message that has hung for
// longer than it may: another replica may handle them.
func (q *queues) held() (held []jetstream.Msg) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, own := range q.queues {
		if time.Since(own.began) < q.opts.HandleTimeout+q.ackWait {
			held = append(append(held, own.handled), own.waiting...)
		}
	}
	return held
}
