package coretest

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// advice is the wait that a far end asks for. A forwarder that waits for so long itself runs into
// Patience.
const advice = 60 * time.Second

// wantRefusal fails the test unless the classification of a refusal survives the way back. A
// refusal of the sender, the manager or the receiver applies to the whole batch: several events
// then fail with one error, so that a sender pauses.
func (s *forwarderSuite) wantRefusal(want Refusal, ofAll bool) {
	s.t.Helper()

	s.farEnd.Always(refuse(want.Err()))
	alone := []core.Batch{numbered(sampleEvent(0))}
	if !s.opts.WithoutNumbers {
		alone = append(alone, beating(numbered()))
	}

	for _, batch := range alone {
		s.wantClassified(s.firstError(batch, false), want)
	}

	s.sentOnce(len(alone), "Forward retries, but the caller does")
	s.wantArrived(managerA)
	if ofAll {
		s.wantClassified(s.firstError(numbered(sampleEvents(0, 3)...), true), want)
	}
}

// testTooLarge refuses requests for their size. A batch that travels in one request is to be split
// by the caller, so its error must not name events: those would be dropped. A transport that sends
// each event alone may name each.
func (s *forwarderSuite) testTooLarge() {
	want := Refusal{Permanent: true, Label: "too_large", Cause: core.ErrTooLarge}
	s.wantRefusal(want, false)
	before := len(s.farEnd.Calls())
	const events = 3
	err := s.firstError(numbered(sampleEvents(0, events)...), false)
	together := slices.ContainsFunc(s.farEnd.Calls()[before:], func(c Call) bool { return len(c.Batch.Events) > 1 })
	s.wantClassified(err, want)

	if together {
		s.wantClassified(s.firstError(numbered(sampleEvents(0, events)...), true), want)
	}
}

// firstError returns the error of the first element of a batch. An error of the whole batch must
// not name events.
func (s *forwarderSuite) firstError(batch core.Batch, ofAll bool) error {
	s.t.Helper()

	err := s.forwardInTime(managerA, batch)
	isTaken := err == nil
	if isTaken {
		s.t.Fatalf("Forward reports success, though the far end did not take a batch of %d events", len(batch.Events))
	}

	if some, named := errors.AsType[core.EventErrors](err); named && ofAll {
		s.t.Errorf("Forward = %v names %d events, though the whole batch failed", err, len(some))
	}
	return eventError(err, 0)
}

func (s *forwarderSuite) wantClassified(err error, want Refusal) {
	s.t.Helper()

	if got := core.IsPermanent(err); got != want.Permanent {
		s.t.Errorf("lost the kind of a refusal: IsPermanent(%v) = %v, want %v", err, got, want.Permanent)
	}
	if got := core.RetryAfter(err); got != want.After {
		s.t.Errorf("lost the wait that the far end asks for: RetryAfter(%v) = %v, want %v", err, got, want.After)
	}

	if want.Cause != nil && !errors.Is(err, want.Cause) {
		s.t.Errorf("lost the cause of a refusal: Forward = %v, want an error that is %q", err, want.Cause)
	}
	if !hasReason(err) {
		s.t.Errorf("lost the reason of a refusal: Reason(%v) = %q, want lower-case words joined by '_'",
			err, core.ReasonOf(err))
	}
}

func hasReason(err error) bool {
	reason := core.ReasonOf(err)
	return reason != "other" && regexp.MustCompile("^[a-z0-9_]+$").MatchString(string(reason))
}

func (s *forwarderSuite) testUnreachable() {
	s.mustSend(managerA, numbered(sampleEvent(0)))
	s.Disconnect()
	err := s.firstError(numbered(sampleEvent(1)), true)
	s.wantClassified(err, Refusal{After: core.RetryAfter(err)}) // The far end may come back at any time.
	s.wantArrived(managerA, sampleEvent(0))
}

func (s *forwarderSuite) testRefusedEvents() {
	events := sampleEvents(0, 5)
	refusals := map[int]Refusal{
		1: {Permanent: true, Label: "malformed"},
		3: {Label: "forbidden", Cause: core.ErrForbidden, After: advice},
	}

	s.farEnd.Always(func(_ context.Context, batch core.Batch) error {
		failed := core.EventErrors{}
		for i := range batch.Events {
			for n, refusal := range refusals {
				if batch.Events[i].Watched == events[n].Watched {
					failed[i] = refusal.Err()
				}
			}
		}

		if len(failed) == 0 {
			return nil
		}
		return failed
	})

	s.refusedOnly(s.sendAll(managerA, numbered(events...)), events, refusals)
}

func (s *forwarderSuite) refusedOnly(failed core.EventErrors, events []core.WatchEvent, refusals map[int]Refusal) {
	s.t.Helper()

	var taken []core.WatchEvent
	for i := range events {
		want, refused := refusals[i]
		switch {
		case refused && failed[i] == nil:
			s.t.Errorf("lost the refusal of event %d (%v): Forward reports it as delivered", i, want.Err())
		case refused:
			s.wantClassified(failed[i], want)
		case failed[i] != nil:
			s.t.Errorf("Forward reports a failure of event %d, though the far end took it: %v", i, failed[i])
		}

		if !refused {
			taken = append(taken, events[i])
		}
	}

	s.wantArrived(managerA, taken...)
}

func (s *forwarderSuite) testUnsendable() {
	if s.opts.Unsendable == nil {
		s.t.Skip("the transport can carry every event")
	}
	alone := s.sendAll(managerA, numbered(*s.opts.Unsendable))[0]
	if !core.IsPermanent(alone) || !hasReason(alone) {
		s.t.Errorf("Forward of an unsendable event = %v, want a permanent error with a reason", alone)
	}

	s.wantArrived(managerA)
	events := []core.WatchEvent{sampleEvent(0), *s.opts.Unsendable, sampleEvent(1)}
	s.refusedOnly(s.sendAll(managerA, numbered(events...)), events, map[int]Refusal{1: {Permanent: true}})
}

func (s *forwarderSuite) testRecovers() {
	for _, answer := range []answer{refuse(core.ErrNotReady), refuse(core.ErrForbidden), s.hang()} {
		s.farEnd.Always(answer)
		ctx, cancel := context.WithTimeout(s.t.Context(), 100*time.Millisecond)
		isTaken := s.callForward(ctx, managerA, numbered(sampleEvent(0))) == nil
		cancel()
		if isTaken {
			s.t.Error("Forward reports success, though the far end does not accept")
		}

		s.farEnd.Always(nil)
		s.mustSend(managerA, numbered(sampleEvent(1)))
	}

	isLater := func(e core.WatchEvent) bool { return e.Watched == sampleEvent(1).Watched }
	if !slices.ContainsFunc(s.farEnd.Acknowledged(managerA), isLater) {
		s.t.Error("Forward reports an event as delivered after a failure, but the event did not arrive")
	}
}
