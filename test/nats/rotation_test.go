package nats_test

import (
	"crypto/tls"
	"crypto/x509"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// TestRotation replaces the CA of all certificates, with a bundle of both in between. The runtime
// keeps its forwarder.
func TestRotation(t *testing.T) {
	t.Parallel()
	b := newBroker(t, embedded(t), 1, runtimeUser(attacker, manager), operatorUser(manager))
	op := newOperator()
	consume(t, b.operator(manager), op, natsjetstream.Options{})
	old, next := b.ca, must(testpki.NewCA("next", testpki.Options{}))

	type material struct {
		leaf  tls.Certificate
		roots *x509.CertPool
	}
	var present atomic.Pointer[material]
	present.Store(&material{b.certificate(attacker).TLS(), old.Pool()})
	keys := func() (*tls.Certificate, *x509.CertPool) {
		m := present.Load()
		return &m.leaf, m.roots
	}
	conn := must(nats.Connect(b.urls(), append(natsjetstream.ConnectOptions(attacker, keys), prompt...)...))
	defer conn.Close()
	f := must(natsjetstream.NewForwarder(conn, attacker, natsjetstream.ForwarderOptions{}))
	forward := func(name string) {
		t.Helper()
		eventually(t, "the batch is sent: "+name, func() bool {
			return f.Forward(t.Context(), manager, batchOf(attacker, name)) == nil
		})
	}
	forward("with the old CA")

	b.trust(testpki.Bundle(old, next))
	both := old.Pool()
	both.AddCert(next.Certificate())
	b.ca = next
	present.Store(&material{b.certificate(attacker).TLS(), both})
	if err := conn.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	forward("with a certificate of the next CA")

	// Only a certificate of the next CA is accepted from here on.
	b.trust(next.PEM())
	forward("with the next CA alone")

	b.serve(must(next.Server("nats", testpki.Options{})))
	forward("with a server of the next CA")
}

// trust restarts the server with another bundle.
func (b *broker) trust(bundle []byte) {
	b.t.Helper()
	b.nodes[0].write("ca.crt", bundle)
	b.restart()
}

// serve restarts the server with another certificate.
func (b *broker) serve(leaf *testpki.Leaf) {
	b.t.Helper()
	b.nodes[0].write("tls.crt", leaf.CertPEM())
	b.nodes[0].write("tls.key", must(leaf.KeyPEM()))
	b.restart()
}

func (b *broker) restart() {
	b.t.Helper()
	b.nodes[0].kill()
	b.nodes[0].launch()
	b.nodes[0].await()
}
