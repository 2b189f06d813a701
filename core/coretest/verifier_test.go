package coretest_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
)

// domains is a verifier that has the DNS name of each owner.
type domains map[string]string

var _ core.Verifier = domains{}

func (d domains) Verify(_ context.Context, peer core.Peer, event *core.WatchEvent) error {
	domain, ok := d[event.Owner.Name]
	switch {
	case peer.ID == "":
		return core.ErrUnauthenticated
	case !ok:
		return fmt.Errorf("owner %s: %w", event.Owner.Name, core.ErrNotReady)
	case !slices.Contains(peer.DNSNames, domain):
		return fmt.Errorf("want the name %s: %w", domain, core.ErrForbidden)
	default:
		return nil
	}
}

func verifierCases() []coretest.VerifierCase {
	peer := core.Peer{ID: "runtime-1", DNSNames: []string{"other.example", "one.example"}}
	event := func(owner string) core.WatchEvent {
		return core.WatchEvent{Owner: types.NamespacedName{Namespace: "kcp-system", Name: owner}}
	}
	return []coretest.VerifierCase{
		{Name: "its own owner", Peer: peer, Event: event("one")},
		{Name: "another owner", Peer: peer, Event: event("two"), Want: core.ErrForbidden},
		{Name: "an owner not known yet", Peer: peer, Event: event("three"), Want: core.ErrNotReady},
		{Name: "without identity", Peer: core.Peer{}, Event: event("one"), Want: core.ErrUnauthenticated},
	}
}

func TestVerifierSuitePassesAVerifier(t *testing.T) {
	t.Parallel()
	verifier := domains{"one": "one.example", "two": "two.example"}
	coretest.TestVerifier(t, func(*testing.T) core.Verifier { return verifier }, verifierCases()...)
}

// A verifier with a cold cache answers every question with ErrNotReady. It has no case that
// passes.
func TestVerifierSuitePassesAColdVerifier(t *testing.T) {
	t.Parallel()
	peer := core.Peer{ID: "runtime-1", DNSNames: []string{"one.example"}}
	event := core.WatchEvent{Owner: types.NamespacedName{Name: "one"}}
	coretest.TestVerifier(t, func(*testing.T) core.Verifier { return domains{} },
		coretest.VerifierCase{Name: "cold", Peer: peer, Event: event, Want: core.ErrNotReady})
}
