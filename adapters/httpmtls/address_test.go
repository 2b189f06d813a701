package httpmtls_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// A gateway that knows one host reaches it under each spelling of the address and of the server
// name, over both versions of HTTP, by one connection.
func TestSpellingsOfAnAddress(t *testing.T) {
	t.Parallel()

	p := newPKI(t)
	for name, tc := range map[string]struct{ address, serverName, host, cert string }{
		"control":                      {"kcp.example.com:8443", "", "kcp.example.com:8443", "kcp.example.com"},
		"upper case, dot":              {"KCP.example.com.:8443", "", "kcp.example.com:8443", "kcp.example.com"},
		"default port":                 {"https://kcp.example.com:443/", "", "kcp.example.com", "kcp.example.com"},
		"no port, dot":                 {"kcp.example.com.", "", "kcp.example.com", "kcp.example.com"},
		"Unicode, upper case, and dot": {"BÜCHER.example.", "", "xn--bcher-kva.example", "xn--bcher-kva.example"},
		"server name with a dot":       {"10.0.0.1", "KCP.example.com.", "10.0.0.1", "kcp.example.com"},
		"server name in Unicode":       {"kcp.example.com", "bücher.example", "kcp.example.com", "xn--bcher-kva.example"},
		"IPv6":                         {"[FD00:0:0::1]:443", "kcp.example.com", "[fd00::1]", "kcp.example.com"},
	} {
		for _, protocol := range []string{http2, http1} {
			var dials atomic.Int64
			var dialled, host, sni atomic.Value
			leaf := must(p.ca.Server("gateway", testpki.Options{DNSNames: []string{tc.cert}}))
			gateway := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				host.Store(r.Host)
				sni.Store(r.TLS.ServerName)
				w.WriteHeader(http.StatusAccepted)
			}))
			gateway.TLS = keys.ServerTLSConfig(must(keys.NewMaterial(p.ca.PEM, leaf.CertPEM, leaf.KeyPEM)))
			gateway.EnableHTTP2 = true
			gateway.StartTLS()
			f := must(httpmtls.NewForwarder(p.client, tc.address, contract.V3, httpmtls.Options{
				ServerName: tc.serverName, Protocol: protocol,
				DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
					dials.Add(1)
					dialled.Store(address)
					return (&net.Dialer{}).DialContext(ctx, network, gateway.Listener.Addr().String())
				},
			}))
			err := f.Forward(t.Context(), manager, core.Batch{Events: []core.Numbered{{WatchEvent: event("a")}}})
			_ = f.Close()
			gateway.Close()
			if err != nil || dials.Load() != 1 || host.Load() != tc.host || sni.Load() != tc.cert {
				t.Errorf("%s, %s: %v after %d dials of %v, host %v, server name %v, want %s and %s", name, protocol, err,
					dials.Load(), dialled.Load(), host.Load(), sni.Load(), tc.host, tc.cert)
			}
		}
	}
}

func TestServerNameIsRefused(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	for _, name := range []string{"kcp:443", "https://kcp", "a b", "kcp..example"} {
		if _, err := httpmtls.NewForwarder(p.client, "kcp", contract.V3, httpmtls.Options{ServerName: name}); err == nil {
			t.Errorf("server name %q is taken", name)
		}
	}
}
