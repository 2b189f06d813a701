package nats_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// leafConfiguration is a server in a runtime. It connects to the control plane with the certificate
// of the runtime, so that all its clients have the permissions of the runtime there.
const leafConfiguration = `
server_name: leaf
listen: "%[1]s"
tls { cert_file: "%[2]s/tls.crt", key_file: "%[2]s/tls.key", ca_file: "%[2]s/ca.crt", verify: true }
leafnodes {
  reconnect: 1
  remotes: [ {
    urls: ["tls://%[3]s"]
    tls { cert_file: "%[2]s/runtime.crt", key_file: "%[2]s/runtime.key", ca_file: "%[2]s/ca.crt" }
  } ]
}
`

// startLeaf starts a leaf node of a runtime, and returns a broker that clients connect to.
func startLeaf(b *lab.Broker, p string, runtime core.RuntimeID) *lab.Broker {
	b.T.Helper()
	n := lab.NewBrokerNode(b.T, "leaf", p)
	client := b.Certificate(runtime)
	lab.NoError(b.T, testpki.NewVolume(n.Dir).Write(testpki.Files(lab.Must(b.CA.Server("leaf", testpki.Options{})), b.CA)))
	n.Write("runtime.crt", client.CertPEM)
	n.Write("runtime.key", client.KeyPEM)
	n.Write("nats.conf", fmt.Appendf(nil, leafConfiguration, n.Addr, n.Dir, b.Nodes[0].Leaf))
	n.Launch()
	n.Await()
	return &lab.Broker{T: b.T, CA: b.CA, Nodes: []*lab.BrokerNode{n}}
}

// TestLeafNode publishes through a server in the runtime. The server of the control plane checks
// the leaf node as it checks a runtime.
func TestLeafNode(t *testing.T) {
	onEach(t, func(t *testing.T, _, p string) {
		t.Helper()
		b := lab.StartBroker(t, lab.BrokerOptions{Program: p}, lab.RuntimeUser(attacker, manager), lab.RuntimeUser(victim, manager), lab.OperatorUser(manager))
		var arrivals lab.Arrivals
		var handedBack atomic.Int64
		consume(t, b.Operator(manager), &arrivals, natsjetstream.Options{Hooks: natsjetstream.Hooks{
			Concluded: func(c hook.Conclusion) {
				if c.Fate == "handed_back" {
					handedBack.Add(1)
				}
			},
		}})
		leaf := startLeaf(b, p, attacker)
		f := leaf.Forwarder(attacker, natsjetstream.ForwarderOptions{AnswerWait: lab.Patience, Timeout: lab.Patience / 4})
		lab.Eventually(t, lab.Patience, "the leaf node carries a batch", func() bool {
			return f.Forward(t.Context(), manager, batchOf(attacker, "object")) == nil
		})
		lab.Same(t, "the event arrives", true, arrivals.Count(of(attacker, "object")) > 0)
		err := f.Forward(t.Context(), manager, batchOf(victim, "forged")) // Its claim is refused.
		if !errors.Is(err, core.ErrForbidden) {
			t.Errorf("Forward with a foreign claim = %v, want the refusal of the operator", err)
		}
		lab.Eventually(t, lab.Patience, "the confirmation of the refusal arrives", func() bool { return handedBack.Load() > 0 })
		confirmsItsOwnOnly(t, b, leaf)
		foreign := leaf.Forwarder(victim, natsjetstream.ForwarderOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		lab.Fails(t, "publishing as another runtime", foreign.Forward(ctx, manager, batchOf(victim, "object")))
		lab.Same(t, "events of another runtime", 0, arrivals.Count(of(victim, "object"))+arrivals.Count(of(victim, "forged")))
	})
}

// confirmsItsOwnOnly tries to confirm refusals of the victim through the leaf node of the attacker.
// A refusal of the attacker, which is confirmed after that on the same connection, shows the way.
func confirmsItsOwnOnly(t *testing.T, b, leaf *lab.Broker) {
	t.Helper()
	confirmation := func(r core.RuntimeID) string {
		return "_INBOX.operator." + string(manager) + ".refused." + string(r) + ".x"
	}
	op := b.Operator(manager)
	confirmed := make(chan *nats.Msg, 100)
	lab.Must(op.ChanSubscribe(confirmation(victim), confirmed))
	lab.Must(op.ChanSubscribe(confirmation(attacker), confirmed))
	conn := lab.Must(leaf.Dial(leaf.Certificate(attacker)))
	defer conn.Close()
	lab.Eventually(t, lab.Patience, "a confirmation passes the leaf node", func() bool {
		lab.NoError(t, errors.Join(conn.Publish(confirmation(victim), nil), conn.Publish(confirmation(attacker), nil)))
		select {
		case msg := <-confirmed:
			if msg.Subject != confirmation(attacker) {
				t.Errorf("a leaf node of %s confirms on %s", attacker, msg.Subject)
			}
			return true
		case <-time.After(time.Second):
			return false
		}
	})
}
