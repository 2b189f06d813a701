package operator

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	// Name is in the certificates of the replicas.
	Name = "operator.default.svc"
	// PortEvents is the name of the port of the Service for runtimes.
	PortEvents = "events"
)

func (o *operator) sourceOptions() controllerruntime.SourceOptions {
	return controllerruntime.SourceOptions{Elected: o.mgr.Elected(), Handled: o.handled}
}

// listen receives events over HTTP.
func (o *operator) listen(context.Context) (manager.Runnable, *controllerruntime.Source[request], error) {
	roots := keys.Roots(o.files)
	peers := listener.FromTLSWithRoots(roots, listener.PeerOptions{})
	if o.Gateway != "" {
		peers = listener.FromXFCC(listener.ProxyCertificate(roots, o.Gateway), roots, listener.PeerOptions{})
	}
	return controllerruntime.RegisterListenerComponent(o.Listen, o.Manager, peers, listener.SANPinning(o.runtimes),
		o.requests, controllerruntime.ComponentOptions{
			Listener: listener.Options{TLS: keys.ServerTLSConfig(o.files), Fleet: o.fleet, Logger: o.log},
			Source:   o.sourceOptions(),
		})
}

func (o *operator) service() types.NamespacedName {
	return types.NamespacedName{Namespace: lab.Namespace, Name: o.Replica.Service}
}

// lead writes the address of this replica into the EndpointSlice while it leads.
func (o *operator) lead() error {
	if o.Replica == nil {
		return nil
	}
	ports := map[string]int32{PortEvents: int32(netip.MustParseAddrPort(o.Listen).Port())}
	leader, err := controllerruntime.NewLeaderEndpoint(o.mgr.GetClient(), o.service(),
		fmt.Sprint("192.0.2.", o.Replica.Number), ports, controllerruntime.LeaderEndpointOptions{Logger: o.log})
	if err != nil {
		return err
	}
	return o.mgr.Add(leader)
}

// consume receives events from NATS servers.
func (o *operator) consume(context.Context) (manager.Runnable, *controllerruntime.Source[request], error) {
	material, err := o.files.Material()
	if err != nil {
		return nil, nil, err
	}
	// It connects now, or when the server is there. The connection is closed with the process.
	conn, err := nats.Connect(o.NATS, nats.Secure(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: material.Roots, Certificates: []tls.Certificate{*material.Certificate},
	}), nats.CustomInboxPrefix("_INBOX.operator."+o.Manager), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true))
	if err != nil {
		return nil, nil, err
	}
	source := controllerruntime.NewSource(o.requests, o.sourceOptions())
	name := core.Manager(o.Manager)
	source.Follow(o.fleet, name)
	consumer, err := natsjetstream.NewConsumer(conn, listener.SANPinning(o.runtimes),
		map[core.Manager]core.Handler{name: source},
		natsjetstream.Options{Peer: lab.MappedPeer, Fleet: o.fleet, Logger: o.log, Stream: o.stream})
	return consumer, source, err
}

func (o *operator) stream(name core.Manager) jetstream.StreamConfig {
	stream := natsjetstream.StreamConfig(name)
	stream.Replicas = max(o.StreamReplicas, 1)
	return stream
}
