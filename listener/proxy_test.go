package listener_test

import (
	"crypto/x509"
	"net/netip"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

func TestProxyAddresses(t *testing.T) {
	t.Parallel()
	proxy := listener.ProxyAddresses(netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fe80::/64"))
	for remote, want := range map[string]bool{
		"10.1.2.3:80":          true,
		"[::ffff:10.1.2.3]:80": true,
		"[fe80::1]:80":         true,
		"[fe80::1%eth0]:80":    true,
		"10.2.0.1:80":          false,
		"[::ffff:10.2.0.1]:80": false,
		"[fe81::1]:80":         false,
		"10.1.2.3":             false,
		"gateway:80":           false,
		"@":                    false, // A Unix socket.
		"":                     false,
	} {
		r := post("/v2/lifecycle/event", bodyV2)
		r.RemoteAddr = remote
		// Headers with the address of the client are ignored.
		r.Header.Set("X-Forwarded-For", "10.1.2.3")
		r.Header.Set("X-Real-Ip", "10.1.2.3")
		if err := proxy(r); (err == nil) != want {
			t.Errorf("%q: error %v, want it accepted: %v", remote, err, want)
		}
	}
}

// Without a CA bundle the gateway is not known yet, and is no stranger.
func TestProxyIsNotReady(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	cert := ca.client(t, "gateway", dnsNames("gateway"))
	byCertificate := listener.ProxyCertificate(func() *x509.CertPool { return nil }, "gateway")
	expectReason(t, "proxy", listener.FromXFCC(byCertificate, ca.roots(), listener.PeerOptions{}), requestOf(ca, cert), core.Reason(core.ErrNotReady))
}

// envoyElement is an element in the shape in which Envoy writes it by default: without Cert.
const envoyElement = `By=spiffe://cluster.local/ns/kcp-system/sa/operator;` +
	`Hash=8ba0f4b1a1b6ad5d37ea39ba0e4b1bcb5a1ea7b3f53e3b2d5a24a1cb0e6ad8c6;Subject="";` +
	`URI=spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account`

// Behind a sidecar requests come from 127.0.0.6, and the sidecar appends an element about the
// gateway.
func TestEnvoySidecar(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	gateway := p.good.header()
	sidecar := netip.MustParsePrefix("127.0.0.6/32")
	named := []string{"spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account"}
	const pod = `By=spiffe://cluster.local/ns/kcp-system/sa/operator;Hash=1;Subject="";URI=spiffe://x`
	tests := []struct {
		name    string
		header  []string
		gateway []string
		reason  string
		names   bool // the error names the option that helps
	}{
		{"gateway and sidecar, with the option", []string{gateway + "," + envoyElement}, named, "", false},
		{"in two lines, with the option", []string{gateway, envoyElement}, named, "", false},
		{"gateway and sidecar", []string{gateway + "," + envoyElement}, nil, "several_elements", true},
		{"in two lines", []string{gateway, envoyElement}, nil, "several_elements", true},
		{"sidecar only", []string{envoyElement}, nil, "no_certificate", true},
		{"sidecar only, with the option", []string{envoyElement}, named, "no_certificate", false},
		{"gateway only, with the option", []string{gateway}, named, "untrusted_proxy", true},
		{"gateway that appends", []string{gateway + "," + gateway}, nil, "several_elements", true},
		{"another pod, with the option", []string{gateway + "," + pod}, named, "untrusted_proxy", true},
		{"another pod, behind an element of its own", []string{gateway + "," + envoyElement + "," + pod}, named, "untrusted_proxy", true},
		{"a good one in front", []string{gateway + "," + p.self.header() + "," + envoyElement}, named, "untrusted_chain", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			peers := listener.FromXFCC(listener.ProxyAddresses(sidecar), p.clients.roots(), listener.PeerOptions{GatewayNames: test.gateway})
			r := post("/v2/lifecycle/event", bodyV2)
			r.RemoteAddr = "127.0.0.6:40001"
			r.Header[headerXFCC] = test.header
			peer, err := peers.Peer(r)
			if test.reason == "" {
				if err != nil || peer.ID != runtimeA {
					t.Errorf("peer %q, error %v, want %q", peer.ID, err, runtimeA)
				}
				return
			}
			if core.Reason(err) != test.reason {
				t.Errorf("reason %q of %v, want %q", core.Reason(err), err, test.reason)
			}
			if names := err != nil && strings.Contains(err.Error(), "GatewayNames"); names != test.names {
				t.Errorf("the error names GatewayNames: %v, want %v: %v", names, test.names, err)
			}
		})
	}
}
