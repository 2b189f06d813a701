package nats_test

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// The agent of the image reports to several managers through NATS, with the settings that the
// installer, the chart and the manifests can set.
func TestAgentOfTheImage(t *testing.T) {
	t.Parallel()
	for name, p := range lab.NATSServers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBroker(t, lab.BrokerOptions{Program: p},
				lab.RuntimeUser(attacker, manager, other), lab.OperatorUser(manager), lab.OperatorUser(other))
			operators := map[core.Manager]*operator{manager: newOperator(), other: newOperator()}
			for m, op := range operators {
				runConsumer(t, lab.Must(natsjetstream.NewConsumer(b.Operator(m), pinning(),
					map[core.Manager]core.Handler{m: op}, natsjetstream.Options{Peer: lab.MappedPeer, Fleet: newFleet()})))
			}
			pki := lab.NewPKI(t)
			pki.CA = b.CA
			volume := pki.RuntimeVolume(string(attacker), lab.RuntimeDomain(attacker))
			agent := lab.StartAgent(t, volume, b.Nodes[0].Addr, lab.AgentOptions{Env: map[string]string{
				"TRANSPORT": "nats", "MANAGERS": string(manager) + "," + string(other),
			}})
			for m, op := range operators {
				eventually(t, "the operator "+string(m)+" gets a resync", func() bool { return op.resynced(attacker) > 0 })
			}
			eventually(t, "nothing is pending", func() bool { return agent.Metric("runtime_watcher_outbox_pending") == 0 })
		})
	}
}
