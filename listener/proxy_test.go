package listener_test

import (
	"crypto/x509"
	"net/netip"
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
