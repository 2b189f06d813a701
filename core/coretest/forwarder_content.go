package coretest

import (
	"context"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func (s *forwarderSuite) carriedPart(batch core.Batch) core.Batch {
	batch = clone(batch)
	for i := range batch.Events {
		e := &batch.Events[i]
		if s.opts.WithoutOwner {
			e.Owner = types.NamespacedName{}
		}

		if key := e.Key(); s.opts.WithoutNumbers {
			*e = core.Numbered{WatchEvent: core.WatchEvent{
				Resync: key.Resync, Owner: key.Owner, Watched: key.Watched, WatchedGVK: key.WatchedGVK,
			}}
		}
	}

	if s.opts.WithoutNumbers {
		batch.Source = ""
		batch.Epoch = ""
		batch.Heartbeat = nil
	}
	return batch
}

// roundTrip allows several requests. Some elements may arrive twice: the first time counts.
func (s *forwarderSuite) roundTrip(sent core.Batch) {
	s.t.Helper()

	before := len(s.farEnd.Calls())
	s.mustSend(managerA, sent)
	want := s.carriedPart(sent)

	got := core.Batch{Source: want.Source, Epoch: want.Epoch}
	seen := map[core.EventKey]bool{}
	for _, call := range s.farEnd.Calls()[before:] {
		if !call.Returned || call.Err != nil {
			continue
		}

		part := s.carriedPart(call.Batch)
		if part.Source != want.Source || part.Epoch != want.Epoch {
			got.Source = part.Source
			got.Epoch = part.Epoch
		}

		for _, e := range part.Events {
			if !seen[e.Key()] {
				got.Events = append(got.Events, e)
			}
			seen[e.Key()] = true
		}

		if got.Heartbeat == nil {
			got.Heartbeat = part.Heartbeat
		}
	}

	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		s.t.Errorf("Forward reports a batch as delivered, but another batch arrived (-sent +arrived):\n%s", diff)
	}
}

// testResyncOfRuntime sends a resync without owner. Contract v1 cannot carry it.
func (s *forwarderSuite) testResyncOfRuntime() {
	batch := numbered(core.WatchEvent{Resync: true})
	if err := s.sendAll(managerA, batch)[0]; !core.IsPermanent(err) {
		s.roundTrip(batch)
	}
}

// testBatch compares a batch before and after Forward, and then writes into it. The race detector
// finds other readers.
func (s *forwarderSuite) testBatch() {
	batch := beating(numbered(sampleEvents(0, 8)...))
	before := clone(batch)
	// Not sendAll, which makes new batches. A cut batch is changed as well.
	_ = s.forwardInTime(managerA, batch)
	if diff := cmp.Diff(before, batch); diff != "" {
		s.t.Errorf("Forward changes the batch (-before +after):\n%s", diff)
	}

	const poison = "written-after-return"
	for i := range batch.Events {
		batch.Events[i].Watched.Name = poison
	}

	s.mustSend(managerA, numbered(sampleEvents(8, 3)...))
	for _, got := range s.farEnd.Acknowledged(managerA) {
		if got.Watched.Name == poison {
			s.t.Fatal("Forward keeps the batch after it has returned: an event that was written into it later arrived")
		}
	}
}

func (s *forwarderSuite) wantArrived(manager core.Manager, sent ...core.WatchEvent) {
	s.t.Helper()

	keys := func(events []core.WatchEvent) map[core.EventKey]bool {
		set := map[core.EventKey]bool{}
		batch := s.carriedPart(core.NewBatch(events...))
		for i := range batch.Events {
			set[batch.Events[i].Key()] = true
		}
		return set
	}

	if diff := cmp.Diff(keys(sent), keys(s.farEnd.Acknowledged(manager))); diff != "" {
		s.t.Errorf("the events that arrived for %s differ from the events that were sent (-sent +arrived):\n%s",
			manager, diff)
	}
}

// sentOnce fails the test if so many batches of one element reached the far end twice or more. One
// of them may: an answer can be lost.
func (s *forwarderSuite) sentOnce(batches int, fault string) {
	s.t.Helper()
	if calls := len(s.farEnd.Calls()); calls >= 2*batches {
		s.t.Errorf("%s: %d batches of one element reached the far end %d times", fault, batches, calls)
	}
}

func (s *forwarderSuite) testDeadline(after time.Duration) {
	s.farEnd.Always(s.hang())
	ctx, cancel := context.WithTimeout(s.t.Context(), after)
	defer cancel()
	s.endedBy(s.callForward(ctx, managerA, numbered(sampleEvent(0))), context.DeadlineExceeded)
}

func (s *forwarderSuite) testEmpty() {
	for _, none := range []core.Batch{{}, {Events: []core.Numbered{}}, numbered()} {
		if err := s.forwardInTime(managerA, none); err != nil {
			s.t.Errorf("Forward of an empty batch = %v, want nil", err)
		}
	}

	if calls := s.farEnd.Calls(); len(calls) != 0 {
		s.t.Errorf("Forward of an empty batch reached the far end %d times", len(calls))
	}

	s.Disconnect()
	if err := s.forwardInTime(managerA, core.Batch{}); err != nil {
		s.t.Errorf("Forward of an empty batch to an unreachable far end = %v, want nil", err)
	}
}

func (s *forwarderSuite) testEvents() {
	for n := range 4 {
		s.roundTrip(numbered(sampleEvent(n)))
	}
	s.sentOnce(4, "Forward sends a batch again after a success")
}

func (s *forwarderSuite) testConcurrent() {
	const calls, perCall = 16, 3
	var group sync.WaitGroup
	sent := map[core.Manager][]core.WatchEvent{}
	for i := range calls {
		manager := []core.Manager{managerA, managerB}[i%2]
		events := sampleEvents(i*perCall, perCall)
		sent[manager] = append(sent[manager], events...)
		group.Go(func() { s.mustSend(manager, numbered(events...)) })
	}

	group.Wait()
	s.wantArrived(managerA, sent[managerA]...)
	s.wantArrived(managerB, sent[managerB]...)
}

func (s *forwarderSuite) testSlowManager() {
	s.farEnd.Next(s.hang())
	soon, end := context.WithTimeout(s.t.Context(), s.opts.Patience)
	defer end()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- s.callForward(ctx, managerA, numbered(sampleEvent(0))) }()

	if err := s.farEnd.WaitCalls(soon, 1); err != nil {
		s.t.Fatalf("no call reached the far end: %v", err)
	}

	s.mustSend(managerB, numbered(sampleEvent(1)))
	select {
	case err := <-result:
		s.t.Fatalf("Forward = %v before the far end answered", err)
	default:
	}

	cancel()
	s.endedBy(<-result, context.Canceled)
}
