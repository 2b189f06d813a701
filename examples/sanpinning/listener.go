package main

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// verifier decides whether a runtime may trigger an event. It shows that verifiers compose: a
// runtime needs its registered domain, or the one before a move, and must not be suspended. now
// reads the registered domains, as controllerruntime.Runtimes does.
func verifier(now listener.Domains) core.Verifier {
	return listener.AllOf(
		listener.AnyOf(listener.SANPinning(now), listener.SANPinning(before())),
		core.VerifierFunc(notSuspended),
	)
}

func notSuspended(_ context.Context, peer core.Peer, _ *core.WatchEvent) error {
	if peer.ID == "runtime-d" {
		return listener.Forbidden("suspended", "runtime %q is suspended", peer.ID)
	}
	return nil
}

// moved has the domains of runtimes before they moved.
type moved map[core.RuntimeID]string

func before() moved { return moved{"runtime-c": "c.example.org"} }

// Domain implements [listener.Domains]. The certificate names the runtime, the sender itself made
// the event. So the owner in the event is compared with the runtime.
func (m moved) Domain(_ context.Context, runtime core.RuntimeID, event *core.WatchEvent) (string, error) {
	domain, ok := m[runtime]
	if !ok || event.Owner != (types.NamespacedName{}) && event.Owner != ownerOf(runtime) {
		return "", listener.Forbidden(listener.ReasonDomainMissing, "runtime %q did not move", runtime)
	}
	return domain, nil
}

// ownerOf returns the object that represents a runtime in the control plane.
func ownerOf(runtime core.RuntimeID) types.NamespacedName {
	return types.NamespacedName{Namespace: "kcp-system", Name: string(runtime)}
}
