package nats_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// sender is the runtime of the tests without an attack.
const sender core.RuntimeID = "runtime-0"

func users() []natsjetstream.User {
	return []natsjetstream.User{lab.OperatorUser(manager), lab.RuntimeUser(sender, manager)}
}

// TestRepeatedAttemptIsStoredOnce stops the server after it has a message, so that the result is
// unknown to the forwarder.
func TestRepeatedAttemptIsStoredOnce(t *testing.T) {
	t.Parallel()
	for name, p := range lab.NATSServers(t) {
		t.Run(name, func(t *testing.T) {
			b := lab.StartBroker(t, lab.BrokerOptions{Program: p}, users()...)
			stream := lab.Must(lab.Must(jetstream.New(b.Operator(manager))).CreateStream(t.Context(), natsjetstream.StreamConfig(manager)))
			f := b.Forwarder(sender, natsjetstream.ForwarderOptions{AnswerWait: -1})
			batch := batchOf(sender, "object")
			b.Nodes[0].Freeze()
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if err := f.Forward(ctx, manager, batch); err == nil {
				t.Error("Forward to a server that stands still = nil")
			}
			b.Nodes[0].Thaw()
			mustForward(t, f, batch)
			awaitMessages(t, stream, 1)
		})
	}
}

// A consumer is not ready while its only server stands still, and ready again afterwards.
func TestFrozenServerIsNotReady(t *testing.T) {
	t.Parallel()
	b := lab.StartBroker(t, lab.BrokerOptions{}, users()...)
	c := lab.Must(natsjetstream.NewConsumer(b.Operator(manager, nats.PingInterval(time.Second)), lab.Pinning(),
		map[core.Manager]core.Handler{manager: taking(new(lab.Arrivals))}, natsjetstream.Options{Peer: lab.MappedPeer}))
	lab.Run(t, "consumer", c.Start)
	lab.Eventually(t, patience, "the consumer is ready", func() bool { return c.Ready() == nil })
	b.Nodes[0].Freeze()
	lab.Eventually(t, patience, "the consumer is not ready", func() bool { return errors.Is(c.Ready(), core.ErrNotReady) })
	b.Nodes[0].Thaw()
	lab.Eventually(t, patience, "the consumer is ready again", func() bool { return c.Ready() == nil })
}
