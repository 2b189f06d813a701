package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// myOperator is the name of the operator in the runtimes.
const myOperator core.Manager = "my-operator"

// verifierFor makes a verifier from the registered domains.
type verifierFor func(now listener.Domains) core.Verifier

// newListener returns a listener that ends TLS itself. It checks the certificate of each request,
// so connections of a removed CA are refused. In a cluster, use the cache of the controller
// manager, and controllerruntime.AddListener instead of listener.New.
func newListener(
	material keys.Source, verify verifierFor, handler core.HandlerFunc, opts listener.Options,
) (*listener.Listener, error) {
	objects := controllerruntimetest.NewCache(
		kyma("runtime-a", "a.example.com"), kyma("runtime-b", "b.example.com"),
		kyma("runtime-c", "c.example.com"), kyma("runtime-d", "d.example.com"))
	runtimes, err := controllerruntime.NewRuntimes(objects, kyma("", ""), controllerruntime.ByName,
		controllerruntime.RuntimesOptions{})
	if err != nil {
		return nil, err
	}

	opts.TLS = keys.ServerTLSConfig(material)
	return listener.New(listener.FromTLS(keys.Roots(material), listener.PeerOptions{}), verify(runtimes),
		map[core.Manager]core.Handler{myOperator: handler}, opts)
}

// kymas is the kind of the objects that represent runtimes.
func kymas() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// kyma returns the object of a runtime with its registered domain.
func kyma(runtime core.RuntimeID, domain string) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kymas())
	name := ownerOf(runtime)
	object.Namespace = name.Namespace
	object.Name = name.Name
	object.Annotations = map[string]string{controllerruntime.DomainAnnotation: domain}
	return object
}

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
		return listener.Forbidden("suspended", fmt.Errorf("runtime %q is suspended", peer.ID))
	}
	return nil
}

// moved contains the domains of runtimes before they moved.
type moved map[core.RuntimeID]string

func before() moved { return moved{"runtime-c": "c.example.org"} }

// Domain implements [listener.Domains]. The certificate names the runtime, the sender itself made
// the event. So the owner in the event is compared with the runtime.
func (m moved) Domain(_ context.Context, runtime core.RuntimeID, event *core.WatchEvent) (string, error) {
	domain, ok := m[runtime]
	namesAnother := event.Owner != (types.NamespacedName{}) && event.Owner != ownerOf(runtime)
	if !ok || namesAnother {
		return "", listener.Forbidden("domain_missing", fmt.Errorf("runtime %q did not move", runtime))
	}
	return domain, nil
}

// ownerOf returns the object that represents a runtime in the control plane.
func ownerOf(runtime core.RuntimeID) types.NamespacedName {
	return types.NamespacedName{Namespace: "kcp-system", Name: string(runtime)}
}
