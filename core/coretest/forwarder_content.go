package coretest

import (
	"context"
	"slices"
	"sync"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// roundTrip sends a batch and returns the batches that the far end acknowledged for it.
func (s *forwarderSuite) roundTrip(batch core.Batch) []core.Batch {
	s.t.Helper()
	before := len(s.farEnd.Calls())
	s.mustSend(managerA, batch)
	var arrived []core.Batch
	for _, call := range s.farEnd.Calls()[before:] {
		if call.Returned && call.Err == nil {
			arrived = append(arrived, call.Batch)
		}
	}
	return arrived
}

func eventsOf(batches []core.Batch) (events []core.Numbered) {
	for i := range batches {
		events = append(events, batches[i].Events...)
	}
	return events
}

// one sends an event and returns it as it arrived.
func (s *forwarderSuite) one(event core.WatchEvent) core.WatchEvent {
	s.t.Helper()
	got := eventsOf(s.roundTrip(s.batch(event)))
	if len(got) == 0 {
		s.t.Fatalf("lost %s: Forward reports it as delivered", describe(&event))
	}
	return got[0].WatchEvent
}

func (s *forwarderSuite) testResync() {
	resync := core.WatchEvent{Resync: true, Owner: sampleEvent(0).Owner, Time: sampleEvent(0).Time}
	if got := s.one(resync); !got.Resync {
		s.t.Errorf("lost the resync: it arrived as %s", describe(&got))
	}
	resync.Owner = types.NamespacedName{}
	// Contract v1 cannot carry it.
	if err := s.send(managerA, s.batch(resync))[0]; core.IsPermanent(err) {
		return
	}
	if got := s.one(resync); !got.Resync || got.Owner != resync.Owner {
		s.t.Errorf("lost the resync of the whole runtime: it arrived as %s", describe(&got))
	}
}

func (s *forwarderSuite) testOwner() {
	s.skipWithout(s.opts.WithoutOwner, "owner")
	for _, sent := range []core.WatchEvent{sampleEvent(0), {Resync: true, Owner: sampleEvent(0).Owner}} {
		if got := s.one(sent); got.Owner != sent.Owner {
			s.t.Errorf("lost the owner of %s: it arrived as %q", describe(&sent), got.Owner)
		}
	}
}

func (s *forwarderSuite) testDetails() {
	s.skipWithout(s.opts.WithoutDetails, "details")
	for n := range 4 {
		sent := sampleEvent(n)
		if s.opts.WithoutOwner {
			sent.Owner = types.NamespacedName{}
		}
		if diff := cmp.Diff(sent, s.one(sent)); diff != "" {
			s.t.Errorf("lost details of an event (-sent +arrived):\n%s", diff)
		}
	}
}

func (s *forwarderSuite) skipWithout(without bool, what string) {
	s.t.Helper()
	if without {
		s.t.Skip("the transport carries no " + what)
	}
}

func (s *forwarderSuite) testClaim() {
	s.skipWithout(s.opts.WithoutNumbers, "numbers")
	sent := s.batch(sampleEvents(0, 2)...)
	for _, got := range s.roundTrip(sent) {
		if got.Source != sent.Source {
			s.t.Errorf("lost the source: the batch claims %q, and %q arrived", sent.Source, got.Source)
		}
		if got.Epoch != sent.Epoch {
			s.t.Errorf("lost the epoch: %q arrived as %q", sent.Epoch, got.Epoch)
		}
	}
}

func (s *forwarderSuite) testNumbers() {
	s.skipWithout(s.opts.WithoutNumbers, "numbers")
	sent := s.batch(sampleEvents(0, 3)...)
	sent.Events[2].Sequence = 1 << 60 // A gap is for the receiver to see.
	// Some may arrive twice.
	numbers := func(events []core.Numbered) map[string]uint64 {
		all := make(map[string]uint64)
		for _, e := range events {
			all[e.ID+" of "+e.Watched.String()] = e.Sequence
		}
		return all
	}
	if diff := cmp.Diff(numbers(sent.Events), numbers(eventsOf(s.roundTrip(sent)))); diff != "" {
		s.t.Errorf("lost the sequence or the ID of an event (-sent +arrived):\n%s", diff)
	}
}

// testHeartbeat sends one heartbeat alone and one with events. A transport without numbers leaves
// it out.
func (s *forwarderSuite) testHeartbeat() {
	for _, count := range []int{0, 2} {
		sent := s.batch(sampleEvents(0, count)...)
		sent.Heartbeat = sampleHeartbeat()
		arrived := s.roundTrip(sent)
		if got := eventsOf(arrived); len(got) < count {
			s.t.Errorf("lost events beside a heartbeat: %d of %d arrived", len(got), count)
		}
		if !s.opts.WithoutNumbers {
			s.checkHeartbeat(arrived, count)
		}
	}
}

func (s *forwarderSuite) checkHeartbeat(arrived []core.Batch, count int) {
	s.t.Helper()
	for i := range arrived {
		if got := arrived[i].Heartbeat; got != nil {
			if diff := cmp.Diff(sampleHeartbeat(), got); diff != "" {
				s.t.Errorf("lost a part of the heartbeat (-sent +arrived):\n%s", diff)
			}
			return
		}
	}
	s.t.Errorf("lost the heartbeat that was sent with %d events: Forward reports it as delivered", count)
}

func (s *forwarderSuite) testUnchanged() {
	batch := s.batch(sampleEvents(0, 8)...)
	batch.Heartbeat = sampleHeartbeat()
	before := clone(batch)
	// Not send, which makes batches of its own. A cut batch is changed as well.
	_ = s.forward(managerA, batch)
	if diff := cmp.Diff(before, batch); diff != "" {
		s.t.Errorf("Forward changes the batch (-before +after):\n%s", diff)
	}
}

// testNotKept writes into a batch after Forward returned. The race detector finds other readers.
func (s *forwarderSuite) testNotKept() {
	first := s.batch(sampleEvents(0, 3)...)
	_ = s.forward(managerA, first)
	poison := sampleEvent(0)
	poison.Watched.Name = "written-after-return"
	for i := range first.Events {
		first.Events[i].WatchEvent = poison
	}
	s.mustSend(managerA, s.batch(sampleEvents(3, 3)...))
	for _, got := range s.farEnd.Acknowledged(managerA) {
		if got.Watched.Name == poison.Watched.Name {
			s.t.Fatal("Forward keeps the batch after it returned: an event that was written into it later arrived")
		}
	}
	s.delivered(managerA, sampleEvents(3, 3)...)
}

// key is the key of an event as far as the transport carries it.
func (s *forwarderSuite) key(e *core.WatchEvent) core.EventKey {
	key := e.Key()
	if s.opts.WithoutOwner {
		key.Owner = types.NamespacedName{}
	}
	return key
}

func (s *forwarderSuite) keys(events []core.WatchEvent) map[core.EventKey]bool {
	set := make(map[core.EventKey]bool, len(events))
	for i := range events {
		set[s.key(&events[i])] = true
	}
	return set
}

// arrived fails the test unless exactly these events were acknowledged for manager, each at least
// once.
func (s *forwarderSuite) arrived(manager core.Manager, sent ...core.WatchEvent) {
	s.t.Helper()
	s.delivered(manager, sent...)
	want, got := s.keys(sent), s.farEnd.Acknowledged(manager)
	for i := range got {
		if !want[s.key(&got[i])] {
			s.t.Errorf("%s arrived for %s, but was not sent", describe(&got[i]), manager)
		}
	}
}

// delivered fails the test unless these events were acknowledged for manager.
func (s *forwarderSuite) delivered(manager core.Manager, sent ...core.WatchEvent) {
	s.t.Helper()
	got := s.keys(s.farEnd.Acknowledged(manager))
	for i := range sent {
		if !got[s.key(&sent[i])] {
			s.t.Errorf("lost %s for %s: Forward reports it as delivered", describe(&sent[i]), manager)
		}
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

func (s *forwarderSuite) testEmpty() {
	for _, none := range []core.Batch{{}, {Events: []core.Numbered{}}, {Source: s.opts.Source, Epoch: epoch}} {
		if err := s.forward(managerA, none); err != nil {
			s.t.Errorf("Forward of an empty batch = %v, want nil", err)
		}
	}
	if calls := s.farEnd.Calls(); len(calls) != 0 {
		s.t.Errorf("Forward of an empty batch reached the far end %d times", len(calls))
	}
	s.Disconnect()
	if err := s.forward(managerA, core.Batch{}); err != nil {
		s.t.Errorf("Forward of an empty batch to an unreachable far end = %v, want nil", err)
	}
}

func (s *forwarderSuite) testEvents() {
	for n := range 4 {
		s.mustSend(managerA, s.batch(sampleEvent(n)))
		s.arrived(managerA, sampleEvents(0, n+1)...)
	}
	s.sentOnce(4, "Forward sends a batch again after a success")
}

func (s *forwarderSuite) testMany() {
	sent := sampleEvents(0, 500) // As many as an agent sends.
	s.mustSend(managerA, s.batch(sent...))
	s.arrived(managerA, sent...)
	// Some may arrive twice: the first time counts.
	last := -1
	for i := range sent {
		place := slices.IndexFunc(s.farEnd.Acknowledged(managerA), func(got core.WatchEvent) bool {
			return s.key(&got) == s.key(&sent[i])
		})
		if place >= 0 && place < last {
			s.t.Fatalf("lost the order: %s arrived before an event that was sent earlier", describe(&sent[i]))
		}
		last = max(last, place)
	}
}

func (s *forwarderSuite) testConcurrent() {
	const calls, perCall = 16, 3
	ctx, cancel := context.WithTimeout(s.t.Context(), s.opts.Patience)
	defer cancel()
	var (
		group sync.WaitGroup
		sent  = map[core.Manager][]core.WatchEvent{}
	)
	for i := range calls {
		manager := []core.Manager{managerA, managerB}[i%2]
		events := sampleEvents(i*perCall, perCall)
		sent[manager] = append(sent[manager], events...)
		group.Go(func() { s.sendConcurrently(ctx, manager, s.batch(events...)) })
	}
	group.Wait()
	s.arrived(managerA, sent[managerA]...)
	s.arrived(managerB, sent[managerB]...)
}

// testSlowManager sends to a manager while a call to another one hangs.
func (s *forwarderSuite) testSlowManager() {
	s.farEnd.Next(s.hang())
	var slow sync.WaitGroup
	defer slow.Wait()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	slow.Go(func() { _ = s.call(ctx, managerA, s.batch(sampleEvent(0))) })
	s.awaitCall()
	s.mustSend(managerB, s.batch(sampleEvent(1)))
}

// sendConcurrently does as send, beside others: it must not end the test.
func (s *forwarderSuite) sendConcurrently(ctx context.Context, manager core.Manager, batch core.Batch) {
	failed := core.EventErrors{}
	for part := newPart(&batch); len(part) > 0 && ctx.Err() == nil; {
		part = part.conclude(s.call(ctx, manager, part.batch(&batch)), failed)
	}
	if len(failed) > 0 || ctx.Err() != nil {
		s.t.Errorf("Forward beside others = %v, context %v, want all delivered", failed, ctx.Err())
	}
}
