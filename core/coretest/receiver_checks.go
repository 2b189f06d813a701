package coretest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func (s *receiverSuite) testAccepted() {
	if err := s.send(receiverRuntime, batchOf("a", "b", "c")); err != nil {
		s.t.Fatalf("Forward = %v, want nil", err)
	}
	s.wantHandled(receiverRuntime, "a", "b", "c")
}

func (s *receiverSuite) testColdVerifier() {
	s.wantWhole(s.send(receiverRuntime, batchOf("a", "b", "c")), core.ErrNotReady)
	s.wantHandled(receiverRuntime)
}

func (s *receiverSuite) testForbiddenSender() {
	s.wantWhole(s.send(receiverRuntime, batchOf("a", "b")), core.ErrForbidden)
	s.wantHandled(receiverRuntime)
}

func (s *receiverSuite) testForbiddenEvent() {
	s.wantEvents(s.send(receiverRuntime, batchOf("a", badName, "c")), core.ErrForbidden, 1)
	s.wantHandled(receiverRuntime, "a", "c")
}

func (s *receiverSuite) testForbiddenChanges() {
	s.wantEvents(s.send(receiverRuntime, batchOf("a", "b")), core.ErrForbidden, 0, 1)
	s.wantHandled(receiverRuntime)
}

func (s *receiverSuite) testFailedEvent() {
	s.wantEvents(s.send(receiverRuntime, batchOf("a", badName, "c")), nil, 1)
	if got := s.handled(receiverRuntime); !slices.Contains(got, "a") || !slices.Contains(got, "c") {
		s.t.Errorf("the handler accepted %v, want a and c beside the event that fails", got)
	}
}

// testHandlerNotReady lets a handler without a method Ready refuse once. Nothing may be lost, and
// no event is named.
func (s *receiverSuite) testHandlerNotReady() {
	s.handler.Next(Refuse(core.ErrNotReady))
	err := s.send(receiverRuntime, batchOf("a"))
	if err != nil {
		s.wantWhole(err, core.ErrNotReady)
		err = s.send(receiverRuntime, batchOf("a"))
	}
	if err != nil {
		s.t.Fatalf("the handler is ready again, and Forward = %v", err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), s.opts.Patience)
	defer cancel()
	accepted := func(calls []Call) bool { return len(acknowledged(calls, receiverManager)) > 0 }
	if err := s.handler.wait(ctx, accepted); err != nil {
		s.t.Errorf("the event is lost: the handler was not ready once, and then accepted nothing")
	}
}

func (s *receiverSuite) testClaim() {
	batch := batchOf("a")
	batch.Source = "runtime-2"
	s.wantWhole(s.send(receiverRuntime, batch), core.ErrForbidden)
	s.wantHandled("runtime-2")
	s.wantHandled(receiverRuntime)
}

func beat() *core.Heartbeat {
	return &core.Heartbeat{
		ID: "beat-1", Number: 1, Sequence: 1, Interval: time.Minute, Time: time.Now(), Canary: core.CanaryAlive,
	}
}

func (s *receiverSuite) testHeartbeat() {
	batch := batchOf("a")
	batch.Heartbeat = beat()
	if err := s.send(receiverRuntime, batch); err != nil {
		s.t.Errorf("Forward = %v, want nil", err)
	}
	s.wantHandled(receiverRuntime, "a")
	if !s.isKnown(receiverRuntime) {
		s.t.Error("the fleet did not get the heartbeat")
	}
}

func (s *receiverSuite) testRefusedHeartbeat() {
	batch := batchOf("a")
	batch.Heartbeat = beat()
	s.wantWhole(s.send(receiverRuntime, batch), core.ErrForbidden)
	if s.isKnown(receiverRuntime) {
		s.t.Error("the fleet got the heartbeat of a sender that the verifier refuses")
	}
}

// testLoudRuntime sends more events than the share of a runtime at once.
func (s *receiverSuite) testLoudRuntime() {
	const batches, events = 8, 400
	names := make([]string, events)
	for i := range names {
		names[i] = fmt.Sprintf("object-%d", i)
	}
	var refused error
	for range batches {
		refused = errors.Join(refused, s.send("loud", batchOf(names...)))
	}
	s.wantWhole(refused, core.ErrNotReady)
	if err := s.send(receiverRuntime, batchOf("a")); err != nil {
		s.t.Errorf("another runtime is refused: %v", err)
	}
	s.wantHandled(receiverRuntime, "a")
}
