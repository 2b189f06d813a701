package natsjetstream

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
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
			c := &Consumer{opts: Options{}.withDefaults()}
			clock := newClock(func() time.Time { return time.Now().Add(differs) })
			clock.learn(clock.now(), &jetstream.StreamInfo{TimeStamp: time.Now()})
			c.receive = func(_ context.Context, d *delivery) verdict {
				got = d.batch.Heartbeat != nil
				return verdict{}
			}
			c.process(t.Context(), "runtime-1", "my-operator", nil, newJob(&stored{body: encoded.Body, age: age}, clock))
			if got != want {
				t.Errorf("a heartbeat of age %v is delivered: %v, want %v; the clocks differ by %v", age, got, want, differs)
			}
		}
	}
}
