package nats_test

import (
	"crypto/tls"
	"crypto/x509"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestRotation replaces the CA of all certificates, with a bundle of both in between. The runtime
// keeps its forwarder.
func TestRotation(t *testing.T) {
	t.Parallel()
	b := newBroker(t, lab.BrokerOptions{}, lab.RuntimeUser(attacker, manager), lab.OperatorUser(manager))
	op := newOperator()
	consume(t, b.Operator(manager), op, natsjetstream.Options{})
	old, next := b.CA, lab.Must(testpki.NewCA("next", testpki.Options{}))
	type material struct {
		leaf  tls.Certificate
		roots *x509.CertPool
	}
	var present atomic.Pointer[material]
	present.Store(&material{b.Certificate(attacker).TLS(), old.Pool()})
	keys := func() (*tls.Certificate, *x509.CertPool) {
		m := present.Load()
		return &m.leaf, m.roots
	}
	conn := lab.Must(nats.Connect(b.URLs(), append(natsjetstream.ConnectOptions(attacker, keys), lab.Prompt...)...))
	defer conn.Close()
	f := lab.Must(natsjetstream.NewForwarder(conn, attacker, natsjetstream.ForwarderOptions{}))
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
	b.CA = next
	present.Store(&material{b.Certificate(attacker).TLS(), both})
	if err := conn.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	forward("with a certificate of the next CA")
	// Only a certificate of the next CA is accepted from here on.
	b.trust(next.PEM())
	forward("with the next CA alone")
	b.serve(lab.Must(next.Server("nats", testpki.Options{})))
	forward("with a server of the next CA")
}

// trust restarts the server with another bundle.
func (b *broker) trust(bundle []byte) {
	b.t.Helper()
	b.Nodes[0].Write("ca.crt", bundle)
	b.Nodes[0].Restart()
}

// serve restarts the server with another certificate.
func (b *broker) serve(leaf *testpki.Leaf) {
	b.t.Helper()
	b.Nodes[0].Write("tls.crt", leaf.CertPEM())
	b.Nodes[0].Write("tls.key", lab.Must(leaf.KeyPEM()))
	b.Nodes[0].Restart()
}
