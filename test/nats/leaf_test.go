package nats_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
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

// leafUser may also confirm refusals: allow_responses has no effect for leaf nodes.
func leafUser(runtime core.RuntimeID) user {
	u := runtimeUser(runtime, manager)
	u.Publish = append(u.Publish, "_INBOX.operator."+string(manager)+".>")
	return u
}

// leaf starts a leaf node of a runtime, and returns a broker that clients connect to.
func (b *broker) leaf(p program, runtime core.RuntimeID) *broker {
	b.t.Helper()
	n := &node{t: b.t, program: p, Name: "leaf", Addr: freeAddr(b.t), Dir: b.t.TempDir()}
	server, client := must(b.ca.Server("leaf", testpki.Options{})), b.certificate(runtime)
	n.write("ca.crt", b.ca.PEM())
	n.write("tls.crt", server.CertPEM())
	n.write("tls.key", must(server.KeyPEM()))
	n.write("runtime.crt", client.CertPEM())
	n.write("runtime.key", must(client.KeyPEM()))
	n.write("nats.conf", fmt.Appendf(nil, leafConfiguration, n.Addr, n.Dir, b.nodes[0].Leaf))
	b.t.Cleanup(n.kill)
	n.launch()
	n.await()
	return &broker{t: b.t, ca: b.ca, nodes: []*node{n}}
}

// TestLeafNode publishes through a server in the runtime. The server of the control plane checks
// the leaf node as it checks a runtime.
func TestLeafNode(t *testing.T) {
	t.Parallel()
	for _, p := range programs(t) {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			b := newBroker(t, p, 1, leafUser(attacker), runtimeUser(victim, manager), operatorUser(manager))
			op := newOperator()
			var handedBack atomic.Int64
			consume(t, b.operator(manager), op, natsjetstream.Options{Hooks: natsjetstream.Hooks{
				Concluded: func(_ core.Manager, fate, _ string, _ time.Duration) {
					if fate == "handed_back" {
						handedBack.Add(1)
					}
				},
			}})
			leaf := b.leaf(p, attacker)
			f := leaf.forwarder(attacker, natsjetstream.ForwarderOptions{AnswerWait: patience})
			eventually(t, "the leaf node carries a batch", func() bool {
				return f.Forward(t.Context(), manager, batchOf(attacker, "object")) == nil
			})
			if op.generation(object{attacker, "object"}) != 1 {
				t.Error("the event did not arrive")
			}

			err := f.Forward(t.Context(), manager, batchOf(victim, "forged")) // Its claim is refused.
			if !errors.Is(err, core.ErrForbidden) {
				t.Errorf("Forward with a foreign claim = %v, want the refusal of the operator", err)
			}
			eventually(t, "the confirmation of the refusal arrives", func() bool { return handedBack.Load() == 1 })
			foreign := leaf.forwarder(victim, natsjetstream.ForwarderOptions{})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if err := foreign.Forward(ctx, manager, batchOf(victim, "object")); err == nil {
				t.Error("a client of the leaf node publishes as another runtime")
			}
			if got := op.generation(object{victim, "object"}) + op.generation(object{victim, "forged"}); got != 0 {
				t.Error("an event of another runtime arrived")
			}
		})
	}
}
