package coretest

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// VerifierCase is a question to a verifier, and the answer that is right.
type VerifierCase struct {
	// Name names the case.
	Name string
	// Peer asks to trigger Event.
	Peer  core.Peer
	Event core.WatchEvent
	// Want is nil when it may, and otherwise [core.ErrUnauthenticated], [core.ErrForbidden] or [core.ErrNotReady].
	Want error
}

// TestVerifier tells whether a verifier keeps the contract of [core.Verifier]. Among the cases must be one that passes
// and one that is refused. Each check gets a verifier of its own.
func TestVerifier(t *testing.T, newVerifier func(t *testing.T) core.Verifier, cases ...VerifierCase) {
	t.Helper()

	passes := func(c VerifierCase) bool { return c.Want == nil }
	refused := func(c VerifierCase) bool { return c.Want != nil }

	if !slices.ContainsFunc(cases, passes) || !slices.ContainsFunc(cases, refused) {
		t.Fatal("want at least one case that passes, and one that is refused")
	}

	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) { testVerdict(t, newVerifier(t), c) })
		t.Run(c.Name+", asked concurrently", func(t *testing.T) { testConcurrentVerdicts(t, newVerifier(t), c) })
		t.Run(c.Name+", by nobody", func(t *testing.T) { testNobody(t, newVerifier(t), c) })
		t.Run(c.Name+", after the end of the context", func(t *testing.T) { testLateVerdict(t, newVerifier(t), c) })
	}
}

func testVerdict(t *testing.T, verifier core.Verifier, c VerifierCase) {
	t.Helper()

	peer, event := clonePeer(c.Peer), c.Event

	for range 2 { // A cache must not change the answer.
		checkVerdict(t, verifier.Verify(t.Context(), peer, &event), c.Want)
	}

	if event != c.Event {
		t.Errorf("Verify changed the event to %+v, from %+v", event, c.Event)
	}

	if !reflect.DeepEqual(peer, c.Peer) {
		t.Errorf("Verify changed the peer to %+v, from %+v", peer, c.Peer)
	}
}

func testConcurrentVerdicts(t *testing.T, verifier core.Verifier, c VerifierCase) {
	t.Helper()

	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { checkVerdict(t, verifier.Verify(t.Context(), c.Peer, &c.Event), c.Want) })
	}

	group.Wait()
}

func testNobody(t *testing.T, verifier core.Verifier, c VerifierCase) {
	t.Helper()

	if err := verifier.Verify(t.Context(), core.Peer{}, &c.Event); err == nil {
		t.Error("Verify lets a peer without identity pass")
	}
}

// testLateVerdict allows a verifier to answer without looking at its context, but not to let pass what it would refuse.
func testLateVerdict(t *testing.T, verifier core.Verifier, c VerifierCase) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	event := c.Event
	err := verifier.Verify(ctx, clonePeer(c.Peer), &event)

	switch {
	case err == nil && c.Want != nil:
		t.Errorf("Verify = nil, want %v or the end of the context", c.Want)
	case c.Want == nil && (errors.Is(err, core.ErrForbidden) || errors.Is(err, core.ErrUnauthenticated)):
		t.Errorf("Verify = %v, want nil or the end of the context: the peer may trigger this", err)
	}
}

func checkVerdict(t *testing.T, err, want error) {
	t.Helper()

	for _, verdict := range []error{core.ErrUnauthenticated, core.ErrForbidden, core.ErrNotReady} {
		if got := errors.Is(err, verdict); got != (verdict == want) { //nolint:errorlint // want is one of these itself.
			t.Errorf("Verify = %v: is %q = %v, want the verdict %v", err, verdict, got, want)
		}
	}

	if (err == nil) != (want == nil) {
		t.Errorf("Verify = %v, want the verdict %v", err, want)
	}

	if err != nil {
		named(t, err)
	}
}

func clonePeer(peer core.Peer) core.Peer {
	peer.DNSNames = slices.Clone(peer.DNSNames)
	peer.URIs = slices.Clone(peer.URIs)
	peer.IPs = slices.Clone[[]netip.Addr](peer.IPs)

	return peer
}
