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

// VerifierCase is a question to a verifier and its right answer.
type VerifierCase struct {
	// Name names the case.
	Name string
	// Peer asks to trigger Event.
	Peer  core.Peer
	Event core.WatchEvent
	// Want is nil when the event may pass, and otherwise one of [core.ErrUnauthenticated],
	// [core.ErrForbidden] and [core.ErrNotReady].
	Want error
}

// TestVerifier checks the contract of [core.Verifier]. Each check gets a verifier of its own. One
// case must pass and one must be refused, unless all want [core.ErrNotReady], as for a verifier
// with a cold cache.
func TestVerifier(t *testing.T, newVerifier func(t *testing.T) core.Verifier, cases ...VerifierCase) {
	t.Helper()
	if fault := faultOf(cases); fault != "" {
		t.Fatal(fault)
	}
	checks := []struct {
		suffix string
		check  func(s *verifierSuite)
	}{
		{"", (*verifierSuite).testVerdict},
		{", concurrently", (*verifierSuite).testConcurrently},
		{", without identity", (*verifierSuite).testWithoutIdentity},
		{", after the end of its context", (*verifierSuite).testEndedContext},
		{", promptly", (*verifierSuite).testPrompt},
	}
	for _, c := range cases {
		for _, check := range checks {
			t.Run(c.Name+check.suffix, func(t *testing.T) {
				own := c
				own.Peer = clonePeer(c.Peer)
				check.check(&verifierSuite{t, newVerifier(t), own})
			})
		}
	}
}

// faultOf returns the fault of a set of cases that proves too little, and "" for a good one.
func faultOf(cases []VerifierCase) string {
	var passing, cold int
	for _, c := range cases {
		switch {
		case c.Want == nil:
			passing++
		case errors.Is(c.Want, core.ErrNotReady):
			cold++
		case !errors.Is(c.Want, core.ErrUnauthenticated) && !errors.Is(c.Want, core.ErrForbidden):
			return "case " + c.Name + ": Want is none of nil, ErrUnauthenticated, ErrForbidden and ErrNotReady"
		}
	}
	switch {
	case len(cases) == 0:
		return "no cases"
	case cold < len(cases) && (passing == 0 || passing == len(cases)):
		return "want a case that passes and one that is refused, or ErrNotReady in all cases"
	default:
		return ""
	}
}

type verifierSuite struct {
	t        *testing.T
	verifier core.Verifier
	VerifierCase
}

func (s *verifierSuite) testVerdict() {
	peer, event := clonePeer(s.Peer), s.Event
	for range 2 { // A cache must not change the answer.
		s.checkVerdict(s.verifier.Verify(s.t.Context(), peer, &event))
	}
	if event != s.Event {
		s.t.Errorf("Verify changes the event to %+v, from %+v", event, s.Event)
	}
	if !reflect.DeepEqual(peer, s.Peer) {
		s.t.Errorf("Verify changes the peer to %+v, from %+v", peer, s.Peer)
	}
}

func (s *verifierSuite) testConcurrently() {
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { s.checkVerdict(s.verifier.Verify(s.t.Context(), s.Peer, &s.Event)) })
	}
	group.Wait()
}

func (s *verifierSuite) testWithoutIdentity() {
	if err := s.verifier.Verify(s.t.Context(), core.Peer{}, &s.Event); err == nil {
		s.t.Error("Verify lets a peer without identity pass")
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
	case s.Want == nil && (errors.Is(err, core.ErrForbidden) || errors.Is(err, core.ErrUnauthenticated)):
		s.t.Errorf("Verify refuses an event for the end of its context: %v", err)
	}
}

// testPrompt fails the test when Verify waits, for example for a cold cache.
func (s *verifierSuite) testPrompt() {
	const patience = time.Minute
	event, result := s.Event, make(chan error, 1)
	go func() { result <- s.verifier.Verify(s.t.Context(), clonePeer(s.Peer), &event) }()
	select {
	case err := <-result:
		s.checkVerdict(err)
	case <-time.After(patience):
		s.t.Errorf("Verify waits: it has not returned after %v", patience)
	}
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
		s.t.Errorf("lost the reason of a refusal: Reason(%v) = %q", err, core.Reason(err))
	}
}

func clonePeer(peer core.Peer) core.Peer {
	peer.DNSNames = slices.Clone(peer.DNSNames)
	peer.URIs = slices.Clone(peer.URIs)
	peer.IPs = slices.Clone(peer.IPs)
	return peer
}
