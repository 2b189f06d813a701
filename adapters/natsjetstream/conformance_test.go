package natsjetstream_test

import (
	"context"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
)

// TestForwarderConformance runs the suite of the port against a real server and a consumer of
// production, of which only the verifier and the handler are replaced.
func TestForwarderConformance(t *testing.T) {
	t.Parallel()
	unsendable := core.WatchEvent{}
	coretest.TestForwarder(t, func(t *testing.T, farEnd *coretest.Recorder) coretest.ForwarderHarness {
		t.Helper()
		b := newBroker(t)
		none := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })
		consumer := must(natsjetstream.NewConsumer(b.connect(), allowAll(),
			map[core.Manager]core.Handler{"manager-a": none, "manager-b": none},
			natsjetstream.Options{HandleTimeout: time.Second}))
		consumer.ReceiveWith(farEnd)
		run(t, consumer)
		b.awaitStream("manager-a")
		b.awaitStream("manager-b")
		// The suite expects the wait of the far end only.
		forwarder := b.forwarder("runtime-1", natsjetstream.ForwarderOptions{RefusedRetryAfter: -1, AnswerWait: 5 * time.Second})
		return coretest.ForwarderHarness{Forwarder: forwarder, Disconnect: b.kill}
	}, coretest.ForwarderOptions{Unsendable: &unsendable})
}

// The consumer behaves as every receiver does.
func TestReceiverConformance(t *testing.T) {
	t.Parallel()
	coretest.TestReceiver(t, func(t *testing.T, parts coretest.ReceiverParts) func(core.RuntimeID) core.Forwarder {
		t.Helper()
		b := newBroker(t)
		run(t, must(natsjetstream.NewConsumer(b.connect(), parts.Verifier, parts.Handlers,
			natsjetstream.Options{Fleet: parts.Fleet})))
		b.awaitStream(manager)
		return func(runtime core.RuntimeID) core.Forwarder {
			return b.forwarder(runtime, natsjetstream.ForwarderOptions{AnswerWait: patience / 2})
		}
	}, coretest.ReceiverOptions{})
}
