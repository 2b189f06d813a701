package coretest

import (
	"context"
	"errors"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func (s *forwarderSuite) testEndedBefore() {
	ctx, cancel := context.WithCancel(s.t.Context())
	cancel()
	s.endedBy(s.call(ctx, managerA, s.batch(sampleEvent(0))), context.Canceled)
}

func (s *forwarderSuite) testCancelledMeanwhile() {
	s.farEnd.Always(s.hang())
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- s.call(ctx, managerA, s.batch(sampleEvent(0))) }()
	s.awaitCall()
	select {
	case err := <-result:
		s.t.Fatalf("Forward = %v before the far end answered", err)
	default:
	}
	cancel()
	s.endedBy(<-result, context.Canceled)
}

func (s *forwarderSuite) testDeadline() {
	s.farEnd.Always(s.hang())
	ctx, cancel := context.WithTimeout(s.t.Context(), 100*time.Millisecond)
	defer cancel()
	s.endedBy(s.call(ctx, managerA, s.batch(sampleEvent(0))), context.DeadlineExceeded)
}

// hang blocks until ctx or the test ends: a far end may not notice that the caller has
// disconnected.
func (s *forwarderSuite) hang() answer {
	end := s.t.Context()
	return func(ctx context.Context, _ core.Batch) error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end.Done():
			return context.Cause(end)
		}
	}
}

func (s *forwarderSuite) awaitCall() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), s.opts.Patience)
	defer cancel()
	if err := s.farEnd.WaitCalls(ctx, 1); err != nil {
		s.t.Fatalf("no call reached the far end: %v", err)
	}
}

// endedBy fails the test unless err is that of the context, and not permanent.
func (s *forwarderSuite) endedBy(err, want error) {
	s.t.Helper()
	if errors.Is(err, errHangs) {
		s.t.Fatalf("Forward ignores ctx: it did not return within %v after its context ended", s.opts.Patience)
	}
	err = eventError(err, 0)
	if !errors.Is(err, want) {
		s.t.Errorf("lost the error of ctx: Forward = %v, want an error that is %v", err, want)
	}
	if core.IsPermanent(err) {
		s.t.Errorf("Forward = %v is permanent, but the far end did not refuse the event", err)
	}
}
