package listener_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// A client of the sidecar chooses the SANs of its own certificate, which Envoy writes without
// quotes. None of them makes it the gateway, and lets it act for a runtime whose certificate it has
// seen. The header of each case is what Envoy writes for the certificate in its name.
func TestSANsOfASidecarsClient(t *testing.T) {
	t.Parallel()

	p := newPKI(t)
	const (
		gateway = "spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account"
		other   = "spiffe://partner.example/x"
		dns     = "gateway.istio-system.svc"
		begin   = `By=spiffe://cluster.local/ns/kcp-system/sa/operator;Hash=1;Subject="";`
	)

	runtime := p.good.header()
	unquoted := "Cert=" + escapedPEM(p.good.TLS.Leaf)

	for name, tc := range map[string]struct{ header, reason string }{
		"control: the gateway":               {runtime + "," + begin + "URI=" + gateway, ""},
		"control: the gateway, with DNS":     {runtime + "," + begin + "URI=" + gateway + ";DNS=" + dns + ";DNS=b.example", ""},
		"control: a gateway by DNS":          {runtime + "," + begin + "DNS=a.example;DNS=" + dns, ""},
		"control: in quotes":                 {runtime + `,Hash=1;URI="` + gateway + `";Subject=""`, ""},
		"control: without Hash and Subject":  {runtime + ",By=a;URI=" + gateway, ""},
		"another":                            {runtime + "," + begin + "URI=" + other, "untrusted_proxy"},
		"another, then the gateway":          {runtime + "," + begin + "URI=" + other + ";URI=" + gateway, "untrusted_proxy"},
		"the gateway, then another":          {runtime + "," + begin + "URI=" + gateway + ";URI=" + other, "untrusted_proxy"},
		"the gateway twice":                  {runtime + "," + begin + "URI=" + gateway + ";URI=" + gateway, "untrusted_proxy"},
		"another, then DNS":                  {runtime + "," + begin + "URI=" + other + ";DNS=" + dns, "untrusted_proxy"},
		"the gateway, then an unknown key":   {runtime + "," + begin + "URI=" + gateway + ";x=y", "untrusted_proxy"},
		"DNS, then an unknown key":           {runtime + "," + begin + "DNS=" + dns + ";x=y", "untrusted_proxy"},
		"the gateway, then By":               {runtime + "," + begin + "URI=" + gateway + ";By=a", "malformed_header"},
		"the gateway, then Hash":             {runtime + ",By=a;URI=" + gateway + ";Hash=1", "malformed_header"},
		"a word behind a semicolon":          {runtime + "," + begin + "URI=" + gateway + ";x", "malformed_header"},
		"a semicolon at the end":             {runtime + "," + begin + "URI=" + gateway + ";", "malformed_header"},
		"a quote inside":                     {runtime + "," + begin + "URI=" + other + `";URI="` + gateway, "malformed_header"},
		"a comma, then the gateway":          {runtime + "," + begin + "URI=" + other + ",URI=" + gateway, "several_elements"},
		"a comma, no header of its own":      {begin + "URI=" + other + ",URI=" + gateway, "no_certificate"},
		"a runtime's certificate in the SAN": {begin + "URI=" + other + ";" + unquoted + ",URI=" + gateway, "malformed_header"},
		"it behind a comma":                  {begin + "URI=" + other + "," + unquoted + ",URI=" + gateway, "several_elements"},
		"it and By behind a comma":           {begin + "URI=" + other + "," + unquoted + "," + begin + "URI=" + gateway, "several_elements"},
		"without Hash of the proxy":          {"By=a;URI=" + other + ";" + unquoted + ",By=a;URI=" + gateway, "malformed_header"},
		"a DNS name with the certificate":    {"By=a;DNS=x;" + unquoted + ",By=a;URI=" + gateway, "malformed_header"},
		"escaped":                            {runtime + "," + begin + "URI=" + strings.Replace(gateway, "/ns/", "%2Fns%2F", 1), "untrusted_proxy"},
		"upper case":                         {runtime + "," + begin + "URI=" + strings.ToUpper(gateway), "untrusted_proxy"},
		"a longer name":                      {runtime + "," + begin + "URI=" + gateway + "-2", "untrusted_proxy"},
		"no name":                            {runtime + "," + begin + "URI=", "untrusted_proxy"},
	} {
		peers := listener.FromXFCC(listener.ProxyAddresses(netip.MustParsePrefix("127.0.0.6/32")), p.clients.roots(),
			listener.PeerOptions{GatewayNames: []string{"spiffe://cluster.local/ns/a/sa/b", gateway, dns}})
		r := post("/v2/lifecycle/event", bodyV2)
		r.RemoteAddr = "127.0.0.6:40001"
		r.Header[headerXFCC] = []string{tc.header}

		peer, err := peers.Peer(r)
		if tc.reason == "" && (err != nil || peer.ID != runtimeA) {
			t.Errorf("%s: peer %q, %v, want the runtime", name, peer.ID, err)
		}
		if tc.reason != "" && (err == nil || string(core.ReasonOf(err)) != tc.reason) {
			t.Errorf("%s: peer %q, %v (%s), want %s", name, peer.ID, err, core.ReasonOf(err), tc.reason)
		}
	}
}
