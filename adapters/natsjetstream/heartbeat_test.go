package natsjetstream_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// An hour of heartbeats without an operator takes a constant place in the stream, whatever the
// number of replicas of the agents. It delays no event, and the operator that is back knows its
// runtimes.
func TestHeartbeatsDoNotFillTheStream(t *testing.T) {
	t.Parallel()

	b := newBroker(t)
	publish := must(jetstream.New(b.connect()))
	stream := must(publish.CreateStream(t.Context(), natsjetstream.StreamConfig(manager)))
	const runtimes, hour = 20, 133
	var replicas [runtimes][2]*natsjetstream.Forwarder
	for n := range runtimes {
		for r := range replicas[n] {
			replicas[n][r] = b.forwarder(core.RuntimeID(fmt.Sprintf("runtime-%d", n)), noAnswer)
		}
	}

	for number := range hour {
		for n := range runtimes {
			for _, f := range replicas[n] {
				mustForward(t, f, heartbeat(uint64(number+1)))
			}
		}
	}

	// An agent that waits for answers drops a heartbeat soon, and has no error.
	patient := natsjetstream.ForwarderOptions{AnswerWait: 2 * time.Second, Timeout: 10 * time.Second}
	mustForward(t, b.forwarder("runtime-0", patient), heartbeat(hour))
	state := must(stream.Info(t.Context())).State
	if state.Msgs != runtimes {
		t.Errorf("the stream has %d messages, want one for each of %d runtimes", state.Msgs, runtimes)
	}
	if all := state.Bytes / runtimes * 10_000; all > 16<<20 {
		t.Errorf("heartbeats of 10,000 runtimes take %d bytes in an hour, want at most 16 MiB", all)
	}

	mustForward(t, replicas[0][0], numbered(1, "a"))
	last := heartbeat(hour + 1)
	last.Heartbeat.Leaving = true
	mustForward(t, replicas[0][1], last)

	if got := must(stream.Info(t.Context())).State.Msgs; got != runtimes+2 {
		t.Errorf("the stream has %d messages, want an event and the last heartbeat more", got)
	}

	watched := must(fleet.New(fleet.Options{}))
	b.consume(allowAll(), &coretest.Recorder{}, natsjetstream.Options{Fleet: watched})
	runtime := b.forwarder("runtime-1", natsjetstream.ForwarderOptions{AnswerWait: time.Second})
	eventually(t, "runtime-1 is fresh again", func() bool {
		return forward(t, runtime, heartbeat(hour+1)) == nil && watched.Get("runtime-1", manager).State == fleet.Fresh
	})
}

// While the operator answers, a message that it does not take holds up no heartbeat.
func TestHeartbeatBesideAnEventThatWaits(t *testing.T) {
	t.Parallel()

	watched := must(fleet.New(fleet.Options{}))
	s := newScene(t, refuse("bad", core.ErrNotReady), natsjetstream.Options{Fleet: watched})
	runtime := s.forwarder("runtime-1", natsjetstream.ForwarderOptions{})
	mustForward(t, runtime, heartbeat(1))
	mustForward(t, s.forwarder("runtime-1", noAnswer), numbered(1, "bad"))
	s.awaitFate("delayed not_ready", 1)
	mustForward(t, runtime, heartbeat(2))
	s.awaitFate("enqueued", 2)
}

// An operator that is back refuses an event that waits in the stream. The event stays there until
// it is given up. The late answer shows that the operator is back, so heartbeats are stored again.
// The sender still gets a later refusal.
func TestHeartbeatBesideAnEventThatIsRefusedLate(t *testing.T) {
	t.Parallel()

	s := &scene{broker: newBroker(t), fates: &fates{}}
	stream := must(must(jetstream.New(s.connect())).CreateStream(t.Context(), natsjetstream.StreamConfig(manager)))
	runtime := s.forwarder("runtime-1", natsjetstream.ForwarderOptions{AnswerWait: 30 * time.Millisecond})
	mustForward(t, runtime, numbered(1, "good"))
	mustForward(t, runtime, numbered(2, "bad"))
	const late = 4 * time.Second
	eventually(t, "no forwarder waits for an answer", func() bool {
		return time.Since(must(stream.Info(t.Context())).State.LastTime) > late
	})
	watched := must(fleet.New(fleet.Options{}))
	s.consume(refuse("bad", core.ErrForbidden), &coretest.Recorder{}, natsjetstream.Options{
		Fleet: watched, Hooks: natsjetstream.Hooks{Concluded: s.fates.add},
	})
	s.awaitFate("delayed forbidden", 1)

	err := forward(t, s.forwarder("runtime-1", natsjetstream.ForwarderOptions{AnswerWait: 10 * time.Second}), numbered(3, "bad"))
	if _, refused := errors.AsType[core.EventErrors](err); !refused {
		t.Errorf("a refusal beside an event that waits in the stream: %v, want the event back", err)
	}

	number := uint64(0)
	eventually(t, "the operator knows the runtime", func() bool {
		number++
		mustForward(t, runtime, heartbeat(number))
		return watched.Get("runtime-1", manager).State == fleet.Fresh
	})
}

// The forwarder declines a refusal that comes just after its wait. So the next refusal is handed
// back immediately.
func TestARefusalJustTooLateSilencesNoRuntime(t *testing.T) {
	t.Parallel()

	late := make(chan struct{})
	s := newScene(t, core.VerifierFunc(func(_ context.Context, _ core.Peer, event *core.WatchEvent) error {
		if event.Watched.Name == "late" {
			<-late
		}
		return core.ErrForbidden
	}), natsjetstream.Options{})

	mustForward(t, s.forwarder("runtime-1", natsjetstream.ForwarderOptions{AnswerWait: 30 * time.Millisecond}), numbered(1, "late"))
	close(late)
	s.awaitFate("delayed forbidden", 1)

	err := forward(t, s.forwarder("runtime-1", natsjetstream.ForwarderOptions{AnswerWait: 10 * time.Second}), numbered(2, "bad"))
	if !errors.Is(err, core.ErrForbidden) {
		t.Errorf("the next refusal: %v, want the event back", err)
	}

	s.awaitFate("handed_back forbidden", 1)
}

// The server writes acknowledgements to any subject that a runtime names. They take no place of the
// runtime of that subject.
func TestAcknowledgementsTakeNoPlace(t *testing.T) {
	t.Parallel()

	held := make(chan struct{})
	s := newScene(t, core.VerifierFunc(func(_ context.Context, _ core.Peer, event *core.WatchEvent) error {
		if event.Watched.Name == "slow" {
			<-held
		}
		return nil
	}), natsjetstream.Options{RuntimeInFlight: 1})

	conn := s.connect()
	publish := must(jetstream.New(conn))
	publishFrom(t, publish, "runtime-1", numbered(1, "slow"), "")

	for range 20 {
		check(t, conn.Publish(natsjetstream.Subject(manager, "runtime-1"), []byte(`{"stream":"watch-my-operator","seq":1}`)))
	}

	s.awaitFate("terminated malformed", 20)
	publishFrom(t, publish, "runtime-1", numbered(2, "a"), "")
	close(held)
	s.awaitHandled(2)

	if got := s.fates.of("delayed too_fast"); got > 0 {
		t.Errorf("%d messages are delayed, want none", got)
	}
}

func heartbeat(number uint64) core.Batch {
	batch := beat(1)
	batch.Heartbeat.Number = number
	batch.Heartbeat.ID = fmt.Sprintf("heartbeat-%d", number)
	return batch
}
