package natsjetstream_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// The clock of an operator may differ from that of the NATS server by any time: heartbeats count,
// and no refused message is given up early.
func TestClockOfTheOperatorMayDiffer(t *testing.T) {
	t.Parallel()
	for name, differs := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watched := must(fleet.New(fleet.Options{}))
			s := &scene{broker: newBroker(t), handler: &coretest.Recorder{}, fates: &fates{}}
			consumer := must(natsjetstream.NewConsumer(s.connect(), refuse("bad", core.ErrForbidden),
				map[core.Manager]core.Handler{manager: s.handler},
				natsjetstream.Options{Fleet: watched, Hooks: natsjetstream.Hooks{Concluded: s.fates.add}}))
			consumer.SetClock(func() time.Time { return time.Now().Add(differs) })
			run(t, consumer)
			s.awaitStream(manager)

			batch := numbered(1, "a")
			batch.Heartbeat = &core.Heartbeat{
				ID: "beat-1", Number: 1, Sequence: 1, Interval: time.Minute, Time: time.Now(), Canary: core.CanaryAlive,
			}
			mustForward(t, s.forwarder("runtime-1", natsjetstream.ForwarderOptions{}), batch)
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

// A clock that is corrected while the consumer runs counts from the next measurement on.
func TestClockIsMeasuredAgain(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	stream := must(must(jetstream.New(b.connect())).CreateStream(t.Context(), natsjetstream.StreamConfig(manager)))
	var differs time.Duration
	clock := natsjetstream.NewClock(func() time.Time { return time.Now().Round(0).Add(differs) })
	for _, step := range []struct{ differs, want time.Duration }{
		{time.Hour, 0},
		{time.Hour + 30*time.Second, 30 * time.Second}, // It is measured at most once a minute.
		{2 * time.Hour, 0},
		{-time.Hour, 0},
	} {
		differs = step.differs
		clock.Sync(t.Context(), stream)
		if age := clock.Age(time.Now()).Round(10 * time.Second); age != step.want {
			t.Errorf("at a difference of %v, a new message is %v old, want %v", step.differs, age, step.want)
		}
	}
}
