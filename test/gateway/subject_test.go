package gateway_test

import (
	"crypto/x509"
	"slices"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/test/gateway"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// TestUnescapedSubject shows what a listener can not mend: a gateway that writes what its client says into the header as it is, as nginx does with
// $ssl_client_s_dn_legacy, says whatever its client wants. The same certificate is harmless behind the variable that escapes.
func TestUnescapedSubject(t *testing.T) {
	n := newNetwork(t)
	n.at.register(t, rig.Namespace, self, new(selfDomain))
	n.at.register(t, rig.Namespace, victim, new(victimDomain))

	a := &attacks{network: n}
	a.victim = a.runtime(victim, victimDomain)
	attacker := a.with(self, testpki.Options{DNSNames: []string{selfDomain}, Edit: func(c *x509.Certificate) {
		c.Subject.Locality = []string{`",` + unfinished(a.victim)}
	}})

	front := volume(t, must(n.ca.servers.Server("gateway", testpki.Options{})), n.ca.runtimes)
	opts := gateway.Options{SubjectVariable: "$ssl_client_s_dn_legacy", Upstream: n.at.proxyAddr.addr, Bind: gatewayAddress}
	opts.ClientCA, opts.Certificate, opts.Key = front.Paths()
	careless := gateway.Start(t, opts)

	for name, tc := range map[string]struct{ addr, triggers string }{
		"escaped":   {n.fronts[byAddress], self},
		"unescaped": {careless.Addr, victim},
	} {
		n.fronts[byAddress] = tc.addr
		before := n.at.queue.len()

		m := a.message(byAddress, row{leaf: attacker}, contract.V2, true)
		m.body = must(contract.V2.Encode([]core.WatchEvent{eventOf(contract.V2, victim)}))

		if got := n.send(t, byAddress, m); got.err != nil {
			t.Fatalf("%s: %v", name, got.err)
		}

		if added := n.at.queue.since(before); !slices.Equal(added, []string{owner(tc.triggers).String()}) {
			t.Errorf("%s: it triggers %q, want %s", name, added, tc.triggers)
		}
	}
}
