package natsjetstream

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
)

// remote is a stream on a server with a clock of its own.
type remote struct {
	jetstream.Stream

	ahead  time.Duration
	silent bool
}

func (r *remote) Info(ctx context.Context, _ ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	if r.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}

	time.Sleep(clockTimeout / 4)
	stamp := r.now() // In the middle of the request.
	time.Sleep(clockTimeout / 4)

	return &jetstream.StreamInfo{TimeStamp: stamp}, nil
}

func (r *remote) now() time.Time { return time.Now().Round(0).Add(r.ahead) }

// The clock goes on while a server does not tell its time.
func TestFailedMeasurement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stream := &remote{ahead: time.Hour}
		clock := newClock(time.Now)
		var log strings.Builder
		c := &Consumer{opts: Options{}.withDefaults(), paced: slog.New(slog.NewTextHandler(&log, nil))}

		for n, measured := range []remote{{ahead: time.Hour}, {ahead: time.Hour, silent: true}, {ahead: -time.Hour}} {
			*stream = measured
			began := time.Now()
			_ = c.measureClock(t.Context(), "m", clock, stream)
			if waited := time.Since(began); waited > clockTimeout {
				t.Errorf("measurement %d takes %v, want at most %v", n, waited, clockTimeout)
			}

			time.Sleep(clockInterval)
			if age := clock.ageOf(stream.now()); age != 0 {
				t.Errorf("after measurement %d, a new message is %v old, want 0", n, age)
			}
			if lines := strings.Count(log.String(), "cannot read the clock of the stream leader"); lines != min(n, 1) {
				t.Errorf("%d lines after measurement %d, want one about the second: %s", lines, n, &log)
			}
		}
	})
}

// stored is a message that the stream has stored a while ago.
type stored struct {
	jetstream.Msg

	body []byte
	age  time.Duration
	// returned counts the calls of Nak.
	returned int
}

func (s *stored) Data() []byte         { return s.body }
func (s *stored) Headers() nats.Header { return nil }
func (s *stored) Ack() error           { return nil }
func (s *stored) Nak() error           { s.returned++; return nil }
func (s *stored) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Timestamp: time.Now().Add(-s.age), NumDelivered: 1}, nil
}

// offline returns a consumer without a connection, and the message of a heartbeat of an age.
func offline(t *testing.T, handler core.Handler, age time.Duration) (*Consumer, *stored) {
	t.Helper()

	batch := core.Batch{Source: "runtime-1", Epoch: "epoch", Heartbeat: &core.Heartbeat{ID: "beat", Number: 1}}
	encoded, err := contract.V3.Encode(&batch)
	if err != nil {
		t.Fatal(err)
	}

	opts := Options{Hooks: Hooks{
		Redelivered: func(hook.Redelivery) { t.Error("the first delivery is counted as another one") },
	}}.withDefaults()
	all := core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return nil })
	in, err := intake.New(all, map[core.Manager]core.Handler{"my-operator": handler}, opts.ofIntake())
	if err != nil {
		t.Fatal(err)
	}

	return &Consumer{opts: opts, intake: in, paced: opts.Logger}, &stored{body: encoded.Body, age: age}
}

// A heartbeat that has waited in the stream must not make a runtime look fresh, also if the clock
// of the operator differs from that of the server.
func TestStaleHeartbeatIsLeftOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, differs := range []time.Duration{0, time.Hour, -time.Hour} {
			for age, want := range map[time.Duration]bool{staleHeartbeat: true, staleHeartbeat + 1: false} {
				got := false
				c, msg := offline(t, core.HandlerFunc(func(context.Context, core.Delivery) error { return nil }), age)
				clock := newClock(func() time.Time { return time.Now().Add(differs) })
				clock.learnTime(clock.now(), &jetstream.StreamInfo{TimeStamp: time.Now()})
				c.receive = func(_ context.Context, r *intake.Request) result {
					got = r.Batch.Heartbeat != nil
					return result{}
				}

				c.processMessage(t.Context(), "runtime-1", "my-operator", newJob(msg, clock))

				if got != want {
					t.Errorf("a heartbeat of age %v is delivered: %v, want %v; the clocks differ by %v", age, got, want, differs)
				}
			}
		}
	})
}

// standby is the handler of a replica that does not lead.
type standby struct{ core.HandlerFunc }

func (standby) Ready() error { return core.ErrNotReady }

// A replica that stops gives its messages back immediately, whatever their events failed with.
func TestReplicaThatStopsGivesMessagesBack(t *testing.T) {
	t.Parallel()

	c, msg := offline(t, standby{func(context.Context, core.Delivery) error { return nil }}, 0)
	c.receive = func(ctx context.Context, _ *intake.Request) result { return result{err: ctx.Err()} }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.processMessage(ctx, "runtime-1", "my-operator", newJob(msg, newClock(time.Now)))

	if msg.returned != 1 {
		t.Errorf("the message is given back %d times, want once", msg.returned)
	}
}
