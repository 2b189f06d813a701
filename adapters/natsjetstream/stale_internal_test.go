package natsjetstream

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
)

// stored is a message that the stream has stored a while ago.
type stored struct {
	jetstream.Msg

	body []byte
	age  time.Duration
}

func (s *stored) Data() []byte         { return s.body }
func (s *stored) Headers() nats.Header { return nil }
func (s *stored) Ack() error           { return nil }
func (s *stored) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Timestamp: time.Now().Add(-s.age), NumDelivered: 1}, nil
}

// A heartbeat that has waited in the stream must not make a runtime look fresh, also if the clock of
// the operator differs from that of the server.
func TestStaleHeartbeatIsLeftOut(t *testing.T) {
	t.Parallel()
	batch := core.Batch{Source: "runtime-1", Epoch: "epoch", Heartbeat: &core.Heartbeat{ID: "beat", Number: 1}}
	encoded, err := contract.V3.Encode(&batch)
	if err != nil {
		t.Fatal(err)
	}
	for _, differs := range []time.Duration{0, time.Hour, -time.Hour} {
		for age, want := range map[time.Duration]bool{time.Second: true, 2 * time.Minute: false} {
			got := false
			opts := Options{}.withDefaults()
			none := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })
			all := core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return nil })
			in, err := intake.New(all, map[core.Manager]core.Handler{"my-operator": none}, opts.ofIntake())
			if err != nil {
				t.Fatal(err)
			}
			c := &Consumer{opts: opts, intake: in}
			clock := newClock(func() time.Time { return time.Now().Add(differs) })
			clock.learn(clock.now(), &jetstream.StreamInfo{TimeStamp: time.Now()})
			c.receive = func(_ context.Context, r *intake.Request) result {
				got = r.Batch.Heartbeat != nil
				return result{}
			}
			c.process(t.Context(), "runtime-1", "my-operator", newJob(&stored{body: encoded.Body, age: age}, clock))
			if got != want {
				t.Errorf("a heartbeat of age %v is delivered: %v, want %v; the clocks differ by %v", age, got, want, differs)
			}
		}
	}
}
