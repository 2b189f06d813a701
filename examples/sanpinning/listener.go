package main

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// manager is the name of the operator in the runtimes.
const manager core.Manager = "my-operator"

// registered has the domain of each runtime. A runtime cannot change it. In a cluster, use
// controllerruntime.Runtimes: it reads the annotation skr-domain, and also refuses a domain that is
// registered twice.
type registered map[core.RuntimeID]string

// Domain returns the domain that a sender must have in its certificate to trigger event. The
// certificate names the runtime, the sender itself made the event.
func (r registered) Domain(_ context.Context, runtime core.RuntimeID, event *core.WatchEvent) (string, error) {
	if event.Owner != (types.NamespacedName{}) && event.Owner != ownerOf(runtime) {
		return "", listener.Forbidden("owner_mismatch", "owner %s does not represent runtime %q", event.Owner, runtime)
	}
	domain, ok := r[runtime]
	if !ok {
		return "", listener.Forbidden(listener.ReasonDomainMissing, "no domain is registered for runtime %q", runtime)
	}
	return domain, nil
}

// ownerOf returns the object that represents a runtime in the control plane.
func ownerOf(runtime core.RuntimeID) types.NamespacedName {
	return types.NamespacedName{Namespace: "kcp-system", Name: string(runtime)}
}

// verifier shows that verifiers compose. A runtime needs its registered domain, or the one before a
// move, and must not be suspended.
func verifier() core.Verifier {
	now := registered{
		"runtime-a": "a.example.com", "runtime-b": "b.example.com",
		"runtime-c": "c.example.com", "runtime-d": "d.example.com",
	}
	before := registered{"runtime-c": "c.example.org"}
	return listener.AllOf(
		listener.AnyOf(listener.SANPinning(now), listener.SANPinning(before)),
		core.VerifierFunc(notSuspended),
	)
}

func notSuspended(_ context.Context, peer core.Peer, _ *core.WatchEvent) error {
	if peer.ID == "runtime-d" {
		return listener.Forbidden("suspended", "runtime %q is suspended", peer.ID)
	}
	return nil
}

// newListener ends TLS itself. It accepts senders with a certificate of a CA in material. It checks
// each request, so that a removed CA loses its open connections. The verifier decides for each
// event whether its runtime may trigger it.
func newListener(
	material httpmtls.Source, verify core.Verifier, operator core.Handler, opts listener.Options,
) (*listener.Listener, error) {
	opts.TLS = httpmtls.ServerTLSConfig(material)
	peers := listener.FromTLSWithRoots(httpmtls.Roots(material), listener.PeerOptions{})
	return listener.New(peers, verify, map[core.Manager]core.Handler{manager: operator}, opts)
}
