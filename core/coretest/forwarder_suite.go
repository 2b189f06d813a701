package coretest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// ForwarderHarness is a forwarder under test and its connection to the far end.
type ForwarderHarness struct {
	// Forwarder is the forwarder under test.
	Forwarder core.Forwarder
	// Disconnect makes the far end unreachable, for example by closing its listener and its
	// connections.
	Disconnect func()
}

// ForwarderOptions name the parts of a batch that a transport cannot carry. The zero value means
// that it carries everything.
type ForwarderOptions struct {
	// WithoutOwner means that events arrive without their owner, as with contract v2.
	WithoutOwner bool
	// WithoutNumbers means that only resyncs, and objects with their kind and owner, arrive, as
	// with contracts v1 and v2. The suite still sends batches with a heartbeat, which the transport
	// omits.
	WithoutNumbers bool
	// Unsendable is an event that the transport cannot carry, such as an event without an owner in
	// contract v1. Nil: none.
	Unsendable *core.WatchEvent
	// Patience is the longest time that a prompt step may take on a busy machine. Default: 1 min.
	Patience time.Duration
}

// forwarderSuite is one check of [TestForwarder]. Its methods report failures at their own lines.
type forwarderSuite struct {
	ForwarderHarness

	t      *testing.T
	farEnd *Recorder
	opts   ForwarderOptions
	hangs  atomic.Bool // Forward ignored the end of its context
}

// callForward calls Forward. It gives up, and fails the test, when Forward does not return within
// Patience after the end of ctx.
func (s *forwarderSuite) callForward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	result := make(chan error, 1)
	go func() { result <- s.Forwarder.Forward(ctx, manager, batch) }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}

	select {
	case err := <-result:
		return err
	case <-time.After(s.opts.Patience):
		s.hangs.Store(true)
		s.t.Errorf("Forward ignores ctx: it did not return within %v after its context ended", s.opts.Patience)
		return ctx.Err()
	}
}

func (s *forwarderSuite) forwardInTime(manager core.Manager, batch core.Batch) error {
	s.t.Helper()

	ctx, cancel := context.WithTimeout(s.t.Context(), s.opts.Patience)
	defer cancel()
	err := s.callForward(ctx, manager, batch)
	if ctx.Err() != nil {
		s.t.Errorf("Forward took more than %v, and returned: %v", s.opts.Patience, err)
	}
	return err
}

// sendAll forwards a batch, and again the rest that is not sent. It returns the errors of the
// elements by their place in the batch; an error for all is the error of each. The heartbeat has
// the place behind the events.
func (s *forwarderSuite) sendAll(manager core.Manager, batch core.Batch) core.EventErrors {
	s.t.Helper()

	failed := core.EventErrors{}
	for place := 0; !batch.IsEmpty(); {
		elements := len(batch.Events)
		sent := 0
		if batch.Heartbeat != nil {
			elements++
		}
		err := s.forwardInTime(manager, batch)
		some, _ := errors.AsType[core.EventErrors](err)

		for i, err := range some {
			if i < 0 || i >= elements || err == nil {
				s.t.Errorf("Forward names element %d of %d, with the error %v", i, elements, err)
			}
		}

		for ; sent < elements && !errors.Is(eventError(err, sent), core.ErrNotSent); sent++ {
			if err := eventError(err, sent); err != nil {
				failed[place+sent] = err
			}
		}

		for i := sent; i < len(batch.Events); i++ { // A heartbeat may be left out.
			if eventError(err, i) == nil {
				s.t.Errorf("Forward reports event %d as delivered, behind one that is not sent", i)
			}
		}

		if sent == 0 {
			s.t.Errorf("Forward sends nothing: it returns core.ErrNotSent for the first of %d elements", elements)
			return failed
		}

		place += sent
		if sent > len(batch.Events) {
			batch.Heartbeat = nil
		}
		batch.Events = batch.Events[min(sent, len(batch.Events)):]
	}

	return failed
}

func (s *forwarderSuite) mustSend(manager core.Manager, batch core.Batch) {
	s.t.Helper()
	for i, err := range s.sendAll(manager, batch) {
		s.t.Errorf("Forward reports a failure, though the far end accepts everything: element %d: %v", i, err)
	}
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

func (s *forwarderSuite) endedBy(err, want error) {
	s.t.Helper()

	err = eventError(err, 0)
	if !errors.Is(err, want) {
		s.t.Errorf("lost the error of ctx: Forward = %v, want an error that is %v", err, want)
	}
	if core.IsPermanent(err) {
		s.t.Errorf("Forward = %v is permanent, but the far end did not refuse the event", err)
	}
}
