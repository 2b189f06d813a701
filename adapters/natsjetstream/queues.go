package natsjetstream

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// queues handle the messages of one manager: those of a runtime one after the other, those of
// different runtimes side by side. So a runtime that is slow to handle delays itself only.
type queues struct {
	*Consumer

	ctx     context.Context //nolint:containedctx // That of one pull, which waits for all queues.
	manager core.Manager
	handler core.Handler
	clock   *clock // That of the leader of the stream.
	slots   chan struct{}
	running sync.WaitGroup

	mu      sync.Mutex
	waiting map[core.RuntimeID][]jetstream.Msg // An empty list means that its goroutine runs.
}

func (c *Consumer) newQueues(
	ctx context.Context, manager core.Manager, handler core.Handler, clock *clock,
) *queues {
	return &queues{
		Consumer: c, ctx: ctx, manager: manager, handler: handler, clock: clock,
		slots: make(chan struct{}, c.opts.MaxInFlight), waiting: map[core.RuntimeID][]jetstream.Msg{},
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
	defer func() { q.release(room) }()
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

func (q *queues) release(slots int) {
	for range slots {
		<-q.slots
	}
}

func (q *queues) wait() { q.running.Wait() }

// add queues a message that has a slot. A runtime with too many messages gets the further ones
// later.
func (q *queues) add(msg jetstream.Msg) {
	runtime, err := parseSubject(msg.Subject())
	if err != nil {
		q.terminate(&job{msg: msg, began: time.Now()}, q.manager, "malformed", err)
		<-q.slots
		return
	}
	switch q.enqueue(runtime, msg) {
	case tooMany:
		q.delay(&job{msg: msg, began: time.Now()}, q.manager, "too_fast", time.Second)
		<-q.slots
	case first:
		q.running.Go(func() { q.work(runtime, msg) })
	case queued:
	}
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
	waiting, runs := q.waiting[runtime]
	switch {
	case !runs:
		q.waiting[runtime] = nil
		return first
	case len(waiting) >= q.opts.RuntimeInFlight:
		return tooMany
	default:
		q.waiting[runtime] = append(waiting, msg)
		return queued
	}
}

// work handles the messages of a runtime until none waits.
func (q *queues) work(runtime core.RuntimeID, msg jetstream.Msg) {
	for more := true; more; msg, more = q.following(runtime) {
		q.process(q.ctx, runtime, q.manager, q.handler, newJob(msg, q.clock))
		<-q.slots
	}
}

func (q *queues) following(runtime core.RuntimeID) (msg jetstream.Msg, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting := q.waiting[runtime]
	if len(waiting) == 0 {
		delete(q.waiting, runtime)
		return nil, false
	}
	q.waiting[runtime] = waiting[1:]
	return waiting[0], true
}
