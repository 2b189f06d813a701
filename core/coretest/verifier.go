package coretest

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// VerifierCase is a question to a verifier and the expected answer.
type VerifierCase struct {
	// Name names the case.
	Name string
	// Peer is the sender of Event.
	Peer  core.Peer
	Event core.WatchEvent
	// Want is nil when the event may pass, and otherwise one of [core.ErrUnauthenticated],
	// [core.ErrForbidden] and [core.ErrNotReady].
	Want error
}

// TestVerifier checks the contract of [core.Verifier]. Each case gets its own verifiers. At least
// one case must pass and one must be refused, unless all cases want [core.ErrNotReady], as for a
// verifier with a cold cache.
func TestVerifier(t *testing.T, newVerifier func(t *testing.T) core.Verifier, cases ...VerifierCase) {
	t.Helper()

	if !proves(cases) {
		t.Fatal("want a case that passes and a case that is refused, or ErrNotReady in all cases")
	}

	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			s := &verifierSuite{t, newVerifier(t), c}
			s.testEndedContext() // A cache would give the answer.

			isPassed := s.verifier.Verify(t.Context(), core.Peer{}, &c.Event) == nil
			if isPassed {
				t.Error("Verify lets a peer without identity pass")
			}

			s.verifier = newVerifier(t) // So that the first calls fill a cache immediately.
			var group sync.WaitGroup
			for range 8 {
				group.Go(s.testVerdict)
			}

			group.Wait()
		})
	}
}

func proves(cases []VerifierCase) bool {
	var passing, cold int
	for _, c := range cases {
		if c.Want == nil {
			passing++
		} else if errors.Is(c.Want, core.ErrNotReady) {
			cold++
		}
	}

	hasBoth := passing > 0 && passing < len(cases)
	isCold := cold > 0 && cold == len(cases)
	return hasBoth || isCold
}

type verifierSuite struct {
	t        *testing.T
	verifier core.Verifier
	VerifierCase
}

// testVerdict asks twice, because a cache must not change the answer.
func (s *verifierSuite) testVerdict() {
	const patience = time.Minute
	peer := clonePeer(s.Peer)
	event := s.Event
	for range 2 {
		result := make(chan error, 1)
		go func() { result <- s.verifier.Verify(s.t.Context(), peer, &event) }()
		select {
		case err := <-result:
			s.checkVerdict(err)
		case <-time.After(patience):
			s.t.Errorf("Verify waits, for example for a cold cache: it has not returned after %v", patience)
			return
		}
	}

	if event != s.Event {
		s.t.Errorf("Verify changes the event to %+v, from %+v", event, s.Event)
	}
	if !reflect.DeepEqual(peer, s.Peer) {
		s.t.Errorf("Verify changes the peer to %+v, from %+v", peer, s.Peer)
	}
}

// testEndedContext allows a verifier to ignore its context, but not another verdict.
func (s *verifierSuite) testEndedContext() {
	ctx, cancel := context.WithCancel(s.t.Context())
	cancel()
	event := s.Event

	err := s.verifier.Verify(ctx, clonePeer(s.Peer), &event)
	switch {
	case err == nil && s.Want != nil:
		s.t.Errorf("Verify lets the event pass after the end of its context, want %v", s.Want)
	case s.Want == nil && isVerdict(err):
		s.t.Errorf("Verify refuses an event for the end of its context: %v", err)
	}
}

func isVerdict(err error) bool {
	return errors.Is(err, core.ErrForbidden) || errors.Is(err, core.ErrUnauthenticated)
}

func (s *verifierSuite) checkVerdict(err error) {
	s.t.Helper()

	if (err == nil) != (s.Want == nil) {
		s.t.Errorf("Verify = %v, want the verdict %v", err, s.Want)
	}

	for _, verdict := range []error{core.ErrUnauthenticated, core.ErrForbidden, core.ErrNotReady} {
		if got := errors.Is(err, verdict); got != errors.Is(s.Want, verdict) {
			s.t.Errorf("Verify = %v is the verdict %q: %v, want the verdict %v", err, verdict, got, s.Want)
		}
	}

	if err != nil && !hasReason(err) {
		s.t.Errorf("lost the reason of a refusal: Reason(%v) = %q", err, core.ReasonOf(err))
	}
}

func clonePeer(peer core.Peer) core.Peer {
	peer.DNSNames = slices.Clone(peer.DNSNames)
	peer.URIs = slices.Clone(peer.URIs)
	peer.IPs = slices.Clone(peer.IPs)
	return peer
}
