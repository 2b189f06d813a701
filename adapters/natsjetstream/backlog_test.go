package natsjetstream_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
)

// The consumer reports the batches that wait in the stream. For an outbox, they are delivered.
func TestBacklogIsReported(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	config := natsjetstream.StreamConfig(manager)
	config.MaxBytes = 1 << 20
	must(must(jetstream.New(b.connect())).CreateStream(t.Context(), config))
	runtime := b.forwarder("runtime-1", noAnswer)
	mustForward(t, runtime, numbered(1, "a"))
	mustForward(t, runtime, numbered(2, "b"))

	var (
		mu       sync.Mutex
		messages []uint64
		full     float64
		age      time.Duration
		again    atomic.Int32
	)
	handler := &coretest.Recorder{}
	handler.Next(func(context.Context, core.Batch) error { return core.ErrNotReady })
	stop := b.consume(allowAll(), handler, natsjetstream.Options{Hooks: natsjetstream.Hooks{
		Backlog: func(_ core.Manager, n uint64, filled float64, oldest time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			messages, full, age = append(messages, n), max(full, filled), max(age, oldest)
		},
		Redelivered: func(core.Manager) { again.Add(1) },
	}})
	eventually(t, "a message is delivered again", func() bool { return again.Load() > 0 })
	stop()
	mu.Lock()
	defer mu.Unlock()
	if len(messages) < 2 || messages[0] != 2 || messages[len(messages)-1] != 0 {
		t.Errorf("the backlog is %v, want 2 first, and 0 after the stop", messages)
	}
	if full <= 0 || full > 0.01 || age <= 0 || age > patience {
		t.Errorf("the stream is filled by %v, and its oldest message is %v old", full, age)
	}
}
