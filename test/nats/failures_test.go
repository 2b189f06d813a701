package nats_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

func runtimeNumber(n int) core.RuntimeID { return core.RuntimeID(fmt.Sprintf("runtime-%d", n)) }

func users(runtimes int) []natsjetstream.User {
	all := []natsjetstream.User{lab.OperatorUser(manager)}
	for n := range runtimes {
		all = append(all, lab.RuntimeUser(runtimeNumber(n), manager))
	}
	return all
}

// TestRepeatedAttemptIsStoredOnce stops the server after it has a message, so that the result is
// unknown to the forwarder.
func TestRepeatedAttemptIsStoredOnce(t *testing.T) {
	t.Parallel()
	for name, p := range lab.NATSServers(t) {
		t.Run(name, func(t *testing.T) {
			b := lab.StartBroker(t, lab.BrokerOptions{Program: p}, users(1)...)
			stream := lab.Must(lab.Must(jetstream.New(b.Operator(manager))).CreateStream(t.Context(), natsjetstream.StreamConfig(manager)))
			f := b.Forwarder(runtimeNumber(0), natsjetstream.ForwarderOptions{AnswerWait: -1})
			batch := batchOf(runtimeNumber(0), "object")
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
	b := lab.StartBroker(t, lab.BrokerOptions{}, users(1)...)
	c := lab.Must(natsjetstream.NewConsumer(b.Operator(manager, nats.PingInterval(time.Second)), pinning(),
		map[core.Manager]core.Handler{manager: taking(new(lab.Arrivals))}, natsjetstream.Options{Peer: lab.MappedPeer}))
	lab.Run(t, "consumer", c.Start)
	eventually(t, "the consumer is ready", func() bool { return c.Ready() == nil })
	b.Nodes[0].Freeze()
	eventually(t, "the consumer is not ready", func() bool { return errors.Is(c.Ready(), core.ErrNotReady) })
	b.Nodes[0].Thaw()
	eventually(t, "the consumer is ready again", func() bool { return c.Ready() == nil })
}
