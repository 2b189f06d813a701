package coretest

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

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
	for part := newPart(&batch); len(part.places) > 0 && ctx.Err() == nil; {
		part = part.conclude(s.call(ctx, manager, part.batch(&batch)), failed)
	}
	if len(failed) > 0 || ctx.Err() != nil {
		s.t.Errorf("Forward beside others = %v, context %v, want all delivered", failed, ctx.Err())
	}
}
