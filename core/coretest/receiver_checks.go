package coretest

import (
	"fmt"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func (s *receiverSuite) testAccepted() {
	if err := s.send(s.runtime, batchOf("a", "b", "c")); err != nil {
		s.t.Fatalf("Forward = %v, want nil", err)
	}
	s.wantHandled(s.runtime, "a", "b", "c")
}

func (s *receiverSuite) testRefused(class error) {
	s.wantWhole(s.send(s.runtime, batchOf("a", "b", "c")), class)
	s.wantHandled(s.runtime)
}

func (s *receiverSuite) testForbiddenEvent() {
	s.wantEvents(s.send(s.runtime, batchOf("a", forbiddenName, "c")), core.ErrForbidden, 1)
	s.wantHandled(s.runtime, "a", "c")
}

func (s *receiverSuite) testForbiddenChanges() {
	s.wantEvents(s.send(s.runtime, batchOf(forbiddenName, forbiddenName+"-too")), core.ErrForbidden, 0, 1)
	s.wantHandled(s.runtime)
}

// testFailedEvent expects the objects beside the one that fails.
func (s *receiverSuite) testFailedEvent(name string) {
	s.wantEvents(s.send(s.runtime, batchOf("a", name, "c")), nil, 1)
	s.wantBeside("a", "c")
}

// testHandlerNotReady lets a handler without a method Ready refuse once. Nothing may be lost, and
// no event is named.
func (s *receiverSuite) testHandlerNotReady() {
	err := s.send(s.runtime, batchOf(lateName))
	if err != nil {
		s.wantWhole(err, core.ErrNotReady)
		err = s.send(s.runtime, batchOf(lateName))
	}
	if err != nil {
		s.t.Fatalf("the handler is ready again, and Forward = %v", err)
	}
	s.wantBeside(lateName)
}

func (s *receiverSuite) testClaim() {
	batch := batchOf("a")
	batch.Source, batch.Heartbeat = "runtime-2", beat()
	s.wantWhole(s.send(s.runtime, batch), core.ErrForbidden)
	for _, runtime := range []core.RuntimeID{"runtime-2", s.runtime} {
		s.wantHandled(runtime)
		if s.fleet != nil && s.isKnown(runtime) {
			s.t.Errorf("the fleet got the heartbeat as one of %s", runtime)
		}
	}
}

func beat() *core.Heartbeat {
	return &core.Heartbeat{
		ID: "beat-1", Number: 1, Sequence: 1, Interval: time.Minute, Time: time.Now(), Canary: core.CanaryAlive,
	}
}

func (s *receiverSuite) testHeartbeat() {
	batch := batchOf("a")
	batch.Heartbeat = beat()
	if err := s.send(s.runtime, batch); err != nil {
		s.t.Errorf("Forward = %v, want nil", err)
	}
	s.wantHandled(s.runtime, "a")
	if s.fleet != nil && !s.isKnown(s.runtime) {
		s.t.Error("the fleet did not get the heartbeat")
	}
}

func (s *receiverSuite) testRefusedHeartbeat() {
	batch := batchOf("a")
	batch.Heartbeat = beat()
	s.wantWhole(s.send(s.runtime, batch), core.ErrForbidden)
	if s.fleet != nil && s.isKnown(s.runtime) {
		s.t.Error("the fleet got the heartbeat of a sender that the verifier refuses")
	}
}

// testLoudRuntime sends more events than the share of a runtime at once. The refusal says when the
// share has room again.
func (s *receiverSuite) testLoudRuntime() {
	const batches, events = 8, 400
	names := make([]string, events)
	for i := range names {
		names[i] = fmt.Sprintf("object-%d", i)
	}
	var refused error
	for n := 0; n < batches && refused == nil; n++ { // A later one might be taken, and begin a longer wait.
		refused = s.send("loud", batchOf(names...))
	}
	s.wantWhole(refused, core.ErrNotReady)
	wait := core.RetryAfter(refused)
	if err := s.send(s.runtime, batchOf("a")); err != nil {
		s.t.Errorf("another runtime is refused: %v", err)
	}
	s.wantHandled(s.runtime, "a")
	<-time.After(wait)
	if err := s.send("loud", batchOf("later")); err != nil {
		s.t.Errorf("refused after the wait of %v that was asked for: %v", wait, err)
	}
}
