package operator

import (
	"crypto/tls"
	"os"

	"github.com/nats-io/nats.go"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// consume receives events from a NATS server.
func (o *operator) consume(p parts) (manager.Runnable, *controllerruntime.Source[request], error) {
	conn, err := o.dial(p.material)
	if err != nil {
		return nil, nil, err
	}

	source := controllerruntime.NewSource(o.requests(p.runtimes), controllerruntime.SourceOptions{
		Elected: p.elected, Handled: o.handled,
	})
	name := core.Manager(o.manager)
	source.Follow(p.fleet, name)

	consumer, err := natsjetstream.NewConsumer(conn, listener.SANPinning(p.runtimes),
		map[core.Manager]core.Handler{name: source},
		natsjetstream.Options{Peer: mapped, Fleet: p.fleet, Logger: o.log})
	return consumer, source, err
}

// dial connects, now or when the server is there. The connection is closed with the process.
func (o *operator) dial(files *keys.Files) (*nats.Conn, error) {
	material, err := files.Material()
	if err != nil {
		return nil, err
	}

	return nats.Connect(os.Getenv("NATS"), nats.Secure(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: material.Roots, Certificates: []tls.Certificate{*material.Certificate},
	}), nats.CustomInboxPrefix("_INBOX.operator."+o.manager), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true))
}

// mapped returns the SAN by which the server has mapped a runtime to its user.
func mapped(runtime core.RuntimeID) core.Peer {
	return core.Peer{ID: runtime, CommonName: string(runtime), DNSNames: []string{string(runtime) + ".example.com"}}
}
