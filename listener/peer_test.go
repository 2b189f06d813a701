package listener_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// A peer has the names, the validity and all fingerprints of its certificate, from a connection as
// from a header.
func TestPeer(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "ca")
	cert := ca.client(t, "runtime-a", dnsNames("a.example"), uri(t, "spiffe://trust/a"), func(c *x509.Certificate) {
		c.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 1), net.ParseIP("2001:db8::1")}
	})
	want := core.Peer{
		ID:          "runtime-a",
		CommonName:  "runtime-a",
		DNSNames:    []string{"a.example"},
		URIs:        []string{"spiffe://trust/a"},
		IPs:         []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		Fingerprint: fingerprint(cert.TLS.Leaf),
		NotBefore:   cert.TLS.Leaf.NotBefore,
		NotAfter:    cert.TLS.Leaf.NotAfter,

		CAFingerprints: []string{fingerprint(ca.Certificate)},
	}

	for n := range 6 {
		other := reform(t, cert.TLS.Leaf, func(s []byte) asn1.BitString {
			if n >= 3 {
				s = otherS(t, s)
			}
			return padding(s, n%3)
		})
		if n > 0 { // The first is as issued.
			want.OtherFingerprints = append(want.OtherFingerprints, fingerprint(other))
		}
	}

	sources := map[string]listener.Peers{
		"connection": listener.FromTLS(ca.roots(), listener.PeerOptions{}),
		"header":     listener.FromXFCC(listener.InsecureAnyProxy(), ca.roots(), listener.PeerOptions{}),
	}
	for name, source := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 2 { // The second comes from the cache.
				have := must(source.Peer(requestOf(ca, cert)))(t)
				if diff := cmp.Diff(want, have, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
					t.Errorf("peer (-want +have):\n%s", diff)
				}
			}
		})
	}
}

// requestOf is a request of cert by every way that there is.
func requestOf(ca *authority, cert *leaf) *http.Request {
	r := post("/v2/lifecycle/event", bodyV2)
	r.Header.Set(headerXFCC, cert.header())
	r.TLS = &tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{cert.TLS.Leaf},
		VerifiedChains:   [][]*x509.Certificate{{cert.TLS.Leaf, ca.Certificate}},
	}
	return r
}

// A remembered certificate is good only while it is valid and leads to the CA bundle.
func TestCachedPeer(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "ca")
	next := newAuthority(t, "next")
	cert := ca.client(t, "runtime-a", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(time.Hour) }) // Not that of the CA.
	type world struct {
		roots *x509.CertPool
		now   time.Time
	}
	both := ca.Pool()
	both.AddCert(next.Certificate)

	steps := []struct {
		name   string
		world  world
		reason string
	}{
		{"good", world{ca.Pool(), time.Now()}, ""},
		{"CA bundle of equal content", world{ca.Pool(), time.Now()}, ""},
		{"overlap", world{both, time.Now()}, ""},
		{"CA is gone", world{next.Pool(), time.Now()}, "untrusted_chain"},
		{"CA is back", world{ca.Pool(), time.Now()}, ""},
		{"no CA bundle", world{nil, time.Now()}, "not_ready"},
		{"the last moment", world{ca.Pool(), cert.TLS.Leaf.NotAfter}, ""},
		{"expired", world{ca.Pool(), cert.TLS.Leaf.NotAfter.Add(time.Second)}, "expired"},
		{"clock goes back", world{ca.Pool(), cert.TLS.Leaf.NotBefore.Add(-time.Second)}, "not_yet_valid"},
		{"good again", world{ca.Pool(), time.Now()}, ""},
	}

	var current atomic.Pointer[world]
	roots := func() *x509.CertPool { return current.Load().roots }
	opts := listener.PeerOptions{Now: func() time.Time { return current.Load().now }}
	checked := []listener.Peers{
		listener.FromTLS(roots, opts), listener.FromXFCC(listener.InsecureAnyProxy(), roots, opts),
	}

	for _, step := range steps {
		current.Store(&step.world)
		for _, source := range checked {
			expectReason(t, step.name, source, requestOf(ca, cert), step.reason)
		}
	}
}

// A verdict holds while each certificate of the chain is valid. Here the CA begins after its
// certificates, and ends before them.
func TestCachedPeerOfACAWithAShorterLife(t *testing.T) {
	t.Parallel()

	now := time.Now()
	life := testpki.Options{NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Minute)}
	ca := &authority{must(testpki.NewCA("ca", life))(t)}
	cert := ca.client(t, "runtime-a", func(c *x509.Certificate) {
		c.NotBefore = now.Add(-time.Hour)
		c.NotAfter = now.Add(time.Hour)
	})
	clock := now
	opts := listener.PeerOptions{Now: func() time.Time { return clock }}

	for _, source := range []listener.Peers{
		listener.FromTLS(ca.roots(), opts), listener.FromXFCC(listener.InsecureAnyProxy(), ca.roots(), opts),
	} {
		for _, step := range []struct {
			name string
			at   time.Duration
			want bool
		}{
			{"all are valid", 0, true},
			{"the CA has ended", 2 * time.Minute, false},
			{"all are valid again", 0, true},
			{"the CA has not begun", -2 * time.Minute, false},
		} {
			clock = now.Add(step.at)
			if _, err := source.Peer(requestOf(ca, cert)); (err == nil) != step.want {
				t.Errorf("%s, %T: %v, want it valid: %t", step.name, source, err, step.want)
			}
		}
	}
}

func expectReason(t *testing.T, step string, source listener.Peers, r *http.Request, want string) {
	t.Helper()

	have := ""
	if _, err := source.Peer(r); err != nil {
		have = string(core.ReasonOf(err))
	}
	if have != want {
		t.Errorf("%s, %T: reason %q, want %q", step, source, have, want)
	}
}

// The verdict that a connection keeps holds for the bundle, the time and the peers that it was made
// with: the next request on the same connection gets another one.
func TestVerdictOfAConnection(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "ca")
	servers := newAuthority(t, "servers")
	cert := ca.client(t, "runtime-a")

	var (
		record recorder
		pool   atomic.Pointer[x509.CertPool]
		late   atomic.Bool
	)

	now := func() time.Time {
		if late.Load() {
			return cert.TLS.Leaf.NotAfter.Add(time.Second)
		}
		return time.Now()
	}

	first := listener.FromTLS(pool.Load, listener.PeerOptions{Now: now})
	named := func(*x509.Certificate) (core.RuntimeID, error) { return "runtime-b", nil }
	other := listener.FromTLS(pool.Load, listener.PeerOptions{Identity: named})
	peers := listener.PeersFunc(func(r *http.Request) (core.Peer, error) {
		if r.Header.Get("Other") != "" {
			return other.Peer(r)
		}
		return first.Peer(r)
	})

	run := start(t, peers, listener.InsecureAllowAll(), &record,
		listener.Options{TLS: serverConfig(t, servers, tls.RequestClientCert, ca), Hooks: record.hooks()})
	client := newClient(t, servers, true, cert.pair())
	send := func(reason string, header http.Header, want ...core.RuntimeID) {
		t.Helper()

		_, _ = mustSend(t, client, run.url+"/v2/lifecycle/event", bodyV2, header)
		deliveries, answers := record.taken()
		var senders []core.RuntimeID
		for _, d := range deliveries {
			senders = append(senders, d.Runtime)
		}

		if len(answers) != 1 || answers[0].Reason != reason || !slices.Equal(senders, want) {
			t.Errorf("answers %v, deliveries of %v, want the reason %q, deliveries of %v", answers, senders, reason, want)
		}
	}

	pool.Store(ca.Pool())
	send("", nil, "runtime-a")
	send("", http.Header{"Other": {"1"}}, "runtime-b")
	send("", nil, "runtime-a")
	pool.Store(servers.Pool())
	send("untrusted_chain", nil)
	pool.Store(ca.Pool())
	send("", nil, "runtime-a")
	late.Store(true)
	send("expired", nil)
	late.Store(false)
	send("", nil, "runtime-a")
	pool.Store(nil)
	send("not_ready", nil)
}

// A certificate without a usable name is refused. A name must be printable, as it is logged.
func TestIdentity(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "ca")
	long := strings.Repeat("a", 2049)
	fixed := func(id core.RuntimeID, err error) func(*x509.Certificate) (core.RuntimeID, error) {
		return func(*x509.Certificate) (core.RuntimeID, error) { return id, err }
	}

	tests := []struct {
		name     string
		cert     *leaf
		identity func(*x509.Certificate) (core.RuntimeID, error)
		want     core.RuntimeID
	}{
		{"common name by default", ca.client(t, "runtime-a"), nil, "runtime-a"},
		{"common name of other letters", ca.client(t, "Läufer 1"), nil, "Läufer 1"},
		{"no common name", ca.client(t, ""), nil, ""},
		{"blank common name", ca.client(t, " \t"), nil, ""},
		{"line break in the common name", ca.client(t, "a\nlevel=INFO"), nil, ""},
		{"text that runs backwards", ca.client(t, "a\u202eb"), nil, ""},
		{"too long", ca.client(t, "a"), fixed(core.RuntimeID(long), nil), ""},
		{"as long as allowed", ca.client(t, "a"), fixed(core.RuntimeID(long[1:]), nil), core.RuntimeID(long[1:])},
		{"not UTF-8", ca.client(t, "a"), fixed("a\xff", nil), ""},
		{"function that fails", ca.client(t, "a"), fixed("a", errors.New("no")), ""},
		{"SPIFFE ID", ca.client(t, "", uri(t, "spiffe://trust/ns/a")), listener.SPIFFE, "spiffe://trust/ns/a"},
		{"no URI", ca.client(t, "a"), listener.SPIFFE, ""},
		{"two URIs", ca.client(t, "", uri(t, "spiffe://trust/a"), uri(t, "spiffe://trust/b")), listener.SPIFFE, ""},
		{"another scheme", ca.client(t, "", uri(t, "https://trust/a")), listener.SPIFFE, ""},
		{"no path", ca.client(t, "", uri(t, "spiffe://trust/")), listener.SPIFFE, ""},
		{"query", ca.client(t, "", uri(t, "spiffe://trust/a?b")), listener.SPIFFE, ""},
		{"fragment", ca.client(t, "", uri(t, "spiffe://trust/a#b")), listener.SPIFFE, ""},
		{"port", ca.client(t, "", uri(t, "spiffe://trust:1/a")), listener.SPIFFE, ""},
		{"user", ca.client(t, "", uri(t, "spiffe://me@trust/a")), listener.SPIFFE, ""},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			sources := []listener.Peers{
				listener.FromTLS(ca.roots(), listener.PeerOptions{Identity: test.identity}),
			}
			if test.identity == nil {
				sources = append(sources, listener.PeersFunc(func(r *http.Request) (core.Peer, error) {
					return core.Peer{ID: core.RuntimeID(r.TLS.PeerCertificates[0].Subject.CommonName)}, nil
				}))
			}

			for _, source := range sources {
				peer, err := source.Peer(requestOf(ca, test.cert))
				if peer.ID != test.want || (err == nil) != (test.want != "") {
					t.Errorf("runtime %q, error %v, want %q", peer.ID, err, test.want)
				}
				if err != nil && core.ReasonOf(err) != reasons.NoIdentity {
					t.Errorf("reason %q, want %q", core.ReasonOf(err), reasons.NoIdentity)
				}
			}
		})
	}
}

// No extended key usage at all is leave for every use (RFC 5280, section 4.2.1.12), and so is the
// one that says "any".
func TestKeyUsage(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "ca")
	usages := map[string]struct {
		usage   []x509.ExtKeyUsage
		unknown []int
		want    string
	}{
		"none":              {nil, nil, ""},
		"any":               {[]x509.ExtKeyUsage{x509.ExtKeyUsageAny}, nil, ""},
		"server and client": {[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, nil, ""},
		"server":            {[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, nil, "wrong_key_usage"},
		"code signing":      {[]x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}, nil, "wrong_key_usage"},
		"unknown":           {nil, []int{1, 2, 3}, "wrong_key_usage"},
	}

	for name, test := range usages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			cert := ca.client(t, "runtime-a", func(c *x509.Certificate) {
				c.ExtKeyUsage = test.usage
				if test.unknown != nil {
					c.UnknownExtKeyUsage = append(c.UnknownExtKeyUsage, test.unknown)
				}
			})

			expectReason(t, name, listener.FromTLS(ca.roots(), listener.PeerOptions{}), requestOf(ca, cert), test.want)
		})
	}
}

// A verdict about a certificate holds for the chain that it was verified with only.
func TestChainIsPartOfTheKey(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "ca")
	below := ca.intermediate(t, "below")
	cert := below.client(t, "runtime-a")
	source := listener.FromTLS(ca.roots(), listener.PeerOptions{})
	r := requestOf(ca, cert)
	expectReason(t, "leaf alone", source, r, "untrusted_chain")

	r.TLS.PeerCertificates = append(r.TLS.PeerCertificates, below.Certificate)
	expectReason(t, "with its chain", source, r, "")
	r.TLS.PeerCertificates = r.TLS.PeerCertificates[:1]
	expectReason(t, "leaf alone again", source, r, "untrusted_chain")
}

// FuzzFromXFCC looks for a header that passes without a good certificate.
func FuzzFromXFCC(f *testing.F) {
	ca := newAuthority(f, "ca")
	source := listener.FromXFCC(listener.InsecureAnyProxy(), ca.roots(), listener.PeerOptions{})
	self := selfSigned(f, "runtime-a")
	for _, seed := range []string{
		"", self.header(), self.header() + "," + self.header(), `Subject="Cert=\"x\"";Cert="` + escapedPEM(self.TLS.Leaf),
		"Chain=" + escapedPEM(self.TLS.Leaf, ca.Certificate), "Chain=" + escapedPEM(ca.Certificate), ca.client(f, "a", expired).header(),
	} {
		f.Add(seed)
	}

	f.Fuzz(func(t *testing.T, header string) {
		r := post("/v2/lifecycle/event", bodyV2)
		r.Header[headerXFCC] = strings.Split(header, "\n")
		unescaped, _ := url.PathUnescape(header)

		isCA := strings.Contains(unescaped, string(encodePEM(ca.Certificate))) // The own certificate of the CA is good for all uses.
		if peer, err := source.Peer(r); err == nil && !isCA {
			t.Errorf("peer %+v", peer)
		} else if err != nil && !errors.Is(err, core.ErrUnauthenticated) {
			t.Errorf("error %v, want one that wraps %v", err, core.ErrUnauthenticated)
		}
	})
}

// Only the address of the connection counts, in each notation. Headers with an address are ignored.
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
	expectReason(t, "proxy", listener.FromXFCC(byCertificate, ca.roots(), listener.PeerOptions{}), requestOf(ca, cert), string(core.ReasonOf(core.ErrNotReady)))
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
		{"a good one in front", []string{gateway + "," + p.self.header() + "," + envoyElement}, named, "several_elements", false},
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

			if string(core.ReasonOf(err)) != test.reason {
				t.Errorf("reason %q of %v, want %q", core.ReasonOf(err), err, test.reason)
			}
			if names := err != nil && strings.Contains(err.Error(), "GatewayNames"); names != test.names {
				t.Errorf("the error names GatewayNames: %v, want %v: %v", names, test.names, err)
			}
		})
	}
}
