package natsjetstream_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// The runtime's side: the transport of an outbox or an agent.
func connectRuntime(
	servers string, runtime core.RuntimeID, keys func() (*tls.Certificate, *x509.CertPool),
) (core.Forwarder, *nats.Conn, error) {
	conn, err := nats.Connect(servers, natsjetstream.ConnectOptions(runtime, keys)...)
	if err != nil {
		return nil, nil, err
	}

	forwarder, err := natsjetstream.NewForwarder(conn, runtime, natsjetstream.ForwarderOptions{})
	return forwarder, conn, err
}

// domainOf returns the SAN under which the NATS server knows a runtime.
func domainOf(runtime core.RuntimeID) string { return string(runtime) + ".example.com" }

// The operator's side, on every replica.
func serveOperator(ctx context.Context, conn *nats.Conn, verifier core.Verifier, handler core.Handler) error {
	watched, err := fleet.New(fleet.Options{})
	if err != nil {
		return err
	}

	consumer, err := natsjetstream.NewConsumer(conn, verifier, map[core.Manager]core.Handler{"my-operator": handler},
		natsjetstream.Options{
			Fleet: watched,
			Peer: func(runtime core.RuntimeID) core.Peer {
				return core.Peer{ID: runtime, CommonName: string(runtime), DNSNames: []string{domainOf(runtime)}}
			},
		})
	if err != nil {
		return err
	}

	return consumer.Start(ctx)
}

// A stream belongs to a manager. An administrator may create it before the operator does.
func ExampleStreamConfig() {
	config := natsjetstream.StreamConfig("my-operator")
	config.Replicas = 3
	fmt.Println(config.Name, config.Subjects, config.Replicas)
	fmt.Println(natsjetstream.Subject("my-operator", "runtime-1"), natsjetstream.InboxPrefix("runtime-1"))
	// Output:
	// watch-my-operator [watch.my-operator.*] 3
	// watch.my-operator.runtime-1 _INBOX.runtime-1
}
