package natsjetstream_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// The clock of an operator may differ from that of the NATS server by any time, and may be set while
// the consumer runs: heartbeats count, and no refused message is given up early.
func TestClockOfTheOperatorMayDiffer(t *testing.T) {
	t.Parallel()
	for name, clock := range map[string]struct{ differs, step time.Duration }{
		"ahead": {differs: time.Hour}, "behind": {differs: -time.Hour},
		"set forward": {step: time.Hour}, "set back": {step: -time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			watched := must(fleet.New(fleet.Options{}))
			s := &scene{broker: newBroker(t), handler: &coretest.Recorder{}, fates: &fates{}}
			consumer := s.consumer(refuse("bad", core.ErrForbidden), s.handler,
				natsjetstream.Options{Fleet: watched, Hooks: natsjetstream.Hooks{Concluded: s.fates.add}})
			var step atomic.Int64
			consumer.SetClock(func() time.Time {
				return stepped(t, time.Now().Add(clock.differs), time.Duration(step.Load()))
			})
			run(t, consumer)
			s.awaitStream(manager)
			step.Store(int64(clock.step))
			mustForward(t, s.forwarder("runtime-1", natsjetstream.ForwarderOptions{}), beat(1, "a"))

			if got := watched.Get("runtime-1", manager).State; got != fleet.Fresh {
				t.Errorf("the runtime is %s after its heartbeat, want fresh", got)
			}

			mustForward(t, s.forwarder("runtime-1", noAnswer), numbered(2, "bad"))
			s.awaitFate("delayed forbidden", 1)

			if n := s.fates.of("terminated forbidden"); n > 0 {
				t.Errorf("%d new messages were given up, want none", n)
			}
		})
	}
}

// stepped returns a time with the same monotonic reading, and a wall clock that was set forward by
// whole seconds. The first field of a [time.Time] with monotonic reading has the seconds from bit 30 on.
func stepped(t *testing.T, now time.Time, step time.Duration) time.Time {
	t.Helper()

	after := now
	*(*uint64)(unsafe.Pointer(&after)) += uint64(step/time.Second) << 30
	if wall, passed := after.Round(0).Sub(now.Round(0)), after.Sub(now); wall != step || passed != 0 {
		t.Errorf("the wall clock is set by %v and the monotonic one by %v, want %v and 0", wall, passed, step)
	}

	return after
}

// servers are the clocks of the leaders of streams, by the name of the stream.
type servers struct {
	jetstream.JetStream

	ahead map[string]time.Duration
}

func (s servers) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	stream, err := s.JetStream.Stream(ctx, name)
	return &led{stream, s.ahead[name]}, err
}

// led is a stream with the clock of its leader.
type led struct {
	jetstream.Stream

	ahead time.Duration
}

func (l *led) CachedInfo() *jetstream.StreamInfo {
	info := *l.Stream.CachedInfo()
	info.TimeStamp = info.TimeStamp.Add(l.ahead)
	return &info
}

// In a cluster, each stream has a leader with a clock of its own. By that of the second stream, the
// heartbeats are an hour old.
func TestEachStreamHasItsOwnClock(t *testing.T) {
	t.Parallel()

	const second core.Manager = "second-operator"
	b := newBroker(t)
	watched := must(fleet.New(fleet.Options{}))
	handler := &coretest.Recorder{}
	conn := b.connect()
	consumer := must(natsjetstream.NewConsumer(conn, allowAll(),
		map[core.Manager]core.Handler{manager: handler, second: handler}, natsjetstream.Options{Fleet: watched}))
	streams := must(jetstream.New(conn))
	consumer.SetStreams(servers{streams, map[string]time.Duration{"watch-" + string(second): time.Hour}})

	for _, m := range []core.Manager{manager, second} {
		must(streams.CreateStream(t.Context(), natsjetstream.StreamConfig(m)))
	}

	run(t, consumer)
	b.awaitStream(manager)
	b.awaitStream(second)
	runtime := b.forwarder("runtime-1", natsjetstream.ForwarderOptions{})

	for m, want := range map[core.Manager]fleet.State{manager: fleet.Fresh, second: fleet.Unknown} {
		check(t, runtime.Forward(t.Context(), m, beat(1, "a")))
		if got := watched.Get("runtime-1", m).State; got != want {
			t.Errorf("the runtime is %s for %s after its heartbeat, want %s", got, m, want)
		}
	}
}

// beat returns a batch with a heartbeat.
func beat(from uint64, names ...string) core.Batch {
	batch := numbered(from, names...)
	batch.Heartbeat = &core.Heartbeat{
		ID: "beat-1", Number: 1, Sequence: 1, Interval: time.Minute, Time: time.Now(), Canary: core.CanaryAlive,
	}
	return batch
}
