package listener_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// pki has the certificates of runtimes and attackers. Package test/gateway has the attacks that
// need nginx or an API server.
type pki struct {
	clients, other, servers     *authority
	good, expired, notYet       *leaf
	serverOnly, anonymous, self *leaf
	stranger                    *leaf
}

func newPKI(t *testing.T) *pki {
	t.Helper()

	p := &pki{clients: newAuthority(t, "runtimes"), other: newAuthority(t, "runtimes"), servers: newAuthority(t, "servers")}
	p.good = p.clients.client(t, "runtime-a", dnsNames("a.example"))
	p.expired = p.clients.client(t, "runtime-a", expired)
	p.notYet = p.clients.client(t, "runtime-a", func(c *x509.Certificate) {
		c.NotBefore = time.Now().Add(time.Hour)
		c.NotAfter = time.Now().Add(2 * time.Hour)
	})
	p.serverOnly = p.clients.client(t, "runtime-a", serverOnly)
	p.anonymous = p.clients.client(t, "")
	p.self = selfSigned(t, "runtime-a")
	p.stranger = p.other.client(t, "runtime-a")
	return p
}

// Native mTLS, where the listener verifies chains itself: every attack gets an answer and a reason.
func TestAttacksOnTLS(t *testing.T) {
	t.Parallel()

	p := newPKI(t)
	tests := []struct {
		name   string
		cert   *leaf
		reason string
	}{
		{"no certificate", nil, "no_certificate"},
		{"self-signed", p.self, "untrusted_chain"},
		{"expired", p.expired, "expired"},
		{"not yet valid", p.notYet, "not_yet_valid"},
		{"of another CA with the same name", p.stranger, "untrusted_chain"},
		{"for servers only", p.serverOnly, "wrong_key_usage"},
		{"without identity", p.anonymous, reasons.NoIdentity},
		{"the good one", p.good, ""},
	}

	for _, http2 := range []bool{false, true} {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()

				var record recorder
				run := start(t, listener.FromTLS(p.clients.roots(), listener.PeerOptions{}), listener.InsecureAllowAll(), &record,
					listener.Options{TLS: serverConfig(t, p.servers, tls.RequestClientCert, p.clients), Hooks: record.hooks()})
				var certs []tls.Certificate
				if test.cert != nil {
					certs = append(certs, test.cert.pair())
				}

				// A header that says otherwise is worth nothing here.
				header := http.Header{headerXFCC: {p.good.header()}}
				response, _ := mustSend(t, newClient(t, p.servers, http2, certs...), run.url+"/v2/lifecycle/event", bodyV2, header)
				checkAttack(t, &record, response.StatusCode, test.reason)
				if want := 1 + btoi(http2); response.ProtoMajor != want {
					t.Errorf("HTTP/%d, want %d", response.ProtoMajor, want)
				}
			})
		}
	}
}

// Native mTLS, where the handshake verifies: attackers do not get an answer at all.
func TestAttacksOnHandshake(t *testing.T) {
	t.Parallel()

	p := newPKI(t)
	var record recorder
	attackers := []*leaf{p.self, p.expired, p.notYet, p.stranger, p.serverOnly}
	failed := make(chan string, 2*len(attackers))
	hooks := record.hooks()
	hooks.HandshakeFailed = func(h hook.HandshakeFailure) { failed <- string(h.Cause) }
	run := start(t, listener.FromTLS(p.clients.roots(), listener.PeerOptions{}), listener.InsecureAllowAll(), &record,
		listener.Options{TLS: serverConfig(t, p.servers, tls.RequireAndVerifyClientCert, p.clients), Hooks: hooks})

	for i, attacker := range attackers {
		response, _, err := send(t, newClient(t, p.servers, true, attacker.pair()), run.url+"/v2/lifecycle/event", bodyV2, nil)
		if err == nil {
			t.Errorf("attacker %d got answer %d, want none", i, response.StatusCode)
		}
	}

	if _, _, err := send(t, newClient(t, p.servers, true), run.url+"/v2/lifecycle/event", bodyV2, nil); err == nil {
		t.Error("got an answer without certificate")
	}

	response, _ := mustSend(t, newClient(t, p.servers, true, p.good.pair()), run.url+"/v2/lifecycle/event", bodyV2, nil)
	checkAttack(t, &record, response.StatusCode, "")
	causes := make(map[string]int)
	for range len(attackers) + 1 {
		causes[<-failed]++ // The server notices after the client: the test hangs if it does not.
	}

	if diff := cmp.Diff(map[string]int{"untrusted": len(attackers), "no_certificate": 1}, causes); diff != "" {
		t.Errorf("causes of failed handshakes (-want +have):\n%s", diff)
	}
	if more := len(failed); more > 0 {
		t.Errorf("%d failed handshakes too many were counted", more)
	}

	response, _ = mustSend(t, newClient(t, p.servers, true, p.anonymous.pair()), run.url+"/v2/lifecycle/event", bodyV2, nil)
	checkAttack(t, &record, response.StatusCode, reasons.NoIdentity)
}

// Attacks with the header, by a client at the address of the gateway.
func TestAttacksOnHeader(t *testing.T) {
	t.Parallel()

	p := newPKI(t)
	intermediate := p.clients.intermediate(t, "runtimes below")
	below := intermediate.client(t, "runtime-a")
	withURI := p.clients.client(t, "runtime-a", uri(t, "spiffe://cluster/gateway"))
	good := p.good.header()
	smuggled := `Hash=` + fingerprint(p.self.TLS.Leaf) + `;Cert="` + escapedPEM(p.self.TLS.Leaf) +
		`";Subject="CN=x\",Cert=\"` + escapedPEM(p.good.TLS.Leaf) + `\"";URI=`
	pem := escapedPEM(p.good.TLS.Leaf)

	tests := []struct {
		name   string
		lines  []string
		reason string
	}{
		{"the good one", []string{good}, ""},
		{"the good one, from the cache", []string{good}, ""},
		{"appended to a header of the client", []string{p.self.header() + "," + good}, "several_elements"},
		{"appended in a line of its own", []string{p.self.header(), good}, "several_elements"},
		{"with intermediate certificates", []string{`Cert="` + escapedPEM(below.TLS.Leaf) + `";Chain="` + escapedPEM(below.TLS.Leaf, intermediate.Certificate) + `"`}, ""},
		{"with SANs", []string{withURI.header()}, ""},
		{"no header", nil, "no_certificate"},
		{"no certificate in it", []string{"Hash=" + fingerprint(p.good.TLS.Leaf)}, "no_certificate"},
		{"empty", []string{""}, "malformed_header"},
		{"self-signed", []string{p.self.header()}, "untrusted_chain"},
		{"expired", []string{p.expired.header()}, "expired"},
		{"not yet valid", []string{p.notYet.header()}, "not_yet_valid"},
		{"of another CA", []string{p.stranger.header()}, "untrusted_chain"},
		{"for servers only", []string{p.serverOnly.header()}, "wrong_key_usage"},
		{"without identity", []string{p.anonymous.header()}, reasons.NoIdentity},
		{"a good one in front", []string{good + "," + p.self.header()}, "several_elements"},
		{"a good one in the first of two lines", []string{good, p.self.header()}, "several_elements"},
		{"intermediate certificates missing", []string{below.header()}, "untrusted_chain"},
		{"a good one inside the subject", []string{smuggled}, "untrusted_chain"},
		{"a quote left open", []string{`Subject="CN=x,` + good}, "malformed_header"},
		{"two certificates in one element", []string{p.self.header() + `;Cert="` + pem + `"`}, "malformed_header"},
		{"the hash of another", []string{`Hash=` + fingerprint(p.self.TLS.Leaf) + `;Cert="` + pem + `"`}, "hash_mismatch"},
		{"broken PEM", []string{`Cert="` + strings.Replace(pem, "END", "ENT", 1) + `"`}, "malformed_certificate"},
		{"33 KiB", []string{`Subject="` + strings.Repeat("x", 33<<10) + `",` + good}, "header_too_large"},
	}

	var record recorder
	run := start(t, listener.FromXFCC(listener.ProxyAddresses(netip.MustParsePrefix("127.0.0.0/8")), p.clients.roots(), listener.PeerOptions{}),
		listener.InsecureAllowAll(), &record, listener.Options{Hooks: record.hooks()})
	client := newClient(t, nil, false)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			response, _ := mustSend(t, client, run.url+"/v2/lifecycle/event", bodyV2, http.Header{headerXFCC: test.lines})
			checkAttack(t, &record, response.StatusCode, test.reason)
		})
	}
}

// Past the gateway: the header is right, its sender is not.
func TestAttacksPastGateway(t *testing.T) {
	t.Parallel()

	p := newPKI(t)
	gateways := newAuthority(t, "control plane")
	gateway := gateways.client(t, "gateway", dnsNames("gateway.istio-system.svc"))
	pod := gateways.client(t, "pod", dnsNames("pod.default.svc"))
	spiffe := gateways.client(t, "", uri(t, "spiffe://cluster/gateway"))
	old := gateways.client(t, "gateway", dnsNames("gateway.istio-system.svc"), expired)
	wildcard := gateways.client(t, "pod", dnsNames("*.istio-system.svc"))
	unnamed := gateways.client(t, "gateway.istio-system.svc")
	elsewhereIssued := p.servers.client(t, "gateway", dnsNames("gateway.istio-system.svc"))
	byCertificate := listener.ProxyCertificate(gateways.roots(), "Gateway.istio-system.svc.", "spiffe://cluster/gateway")
	elsewhere := listener.ProxyAddresses(netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("::/0"))
	here := listener.ProxyAddresses(netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("127.0.0.1/32"))

	tests := []struct {
		name   string
		proxy  func(*http.Request) error
		sender *leaf
		reason string
	}{
		{"gateway by DNS name", byCertificate, gateway, ""},
		{"gateway by URI", byCertificate, spiffe, ""},
		{"another pod", byCertificate, pod, "untrusted_proxy"},
		{"the runtime itself", byCertificate, p.good, "untrusted_proxy"},
		{"a gateway with an expired certificate", byCertificate, old, "untrusted_proxy"},
		{"no certificate", byCertificate, nil, "untrusted_proxy"},
		{"a wildcard that covers the name", byCertificate, wildcard, "untrusted_proxy"},
		{"the name as Common Name only", byCertificate, unnamed, "untrusted_proxy"},
		{"the name, of another CA", byCertificate, elsewhereIssued, "untrusted_proxy"},
		{"any name of the CA", listener.ProxyCertificate(gateways.roots()), gateway, "untrusted_proxy"},
		{"no CA", listener.ProxyCertificate(nil, "gateway"), gateway, "untrusted_proxy"},
		{"address of the gateway", here, nil, ""},
		{"another address", elsewhere, nil, "untrusted_proxy"},
		{"no address", listener.ProxyAddresses(), nil, "untrusted_proxy"},
		{"everyone", listener.InsecureAnyProxy(), nil, ""},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			var (
				record recorder
				certs  []tls.Certificate
			)
			if test.sender != nil {
				certs = append(certs, test.sender.pair())
			}
			run := start(t, listener.FromXFCC(test.proxy, p.clients.roots(), listener.PeerOptions{}), listener.InsecureAllowAll(), &record,
				listener.Options{TLS: serverConfig(t, p.servers, tls.RequestClientCert, gateways), Hooks: record.hooks()})
			response, body := mustSend(t, newClient(t, p.servers, true, certs...), run.url+"/v2/lifecycle/event", bodyV2,
				http.Header{headerXFCC: {p.good.header()}})
			checkAttack(t, &record, response.StatusCode, test.reason)
			if test.reason != "" && body != "{\"reason\":\"unauthenticated\"}\n" {
				t.Errorf("a stranger gets %q", body)
			}
		})
	}
}

// checkAttack expects 401 where there is a reason. The attack must be counted, and enqueue nothing.
func checkAttack(t *testing.T, record *recorder, status int, reason string) {
	t.Helper()

	want := http.StatusOK
	if reason != "" {
		want = http.StatusUnauthorized
	}
	if status != want {
		t.Errorf("status %d, want %d", status, want)
	}

	deliveries, answers := record.taken()
	if len(answers) != 1 {
		t.Fatalf("answers %+v were counted, want one", answers)
	}
	if diff := cmp.Diff([]any{want, reason}, []any{answers[0].Status, answers[0].Reason}); diff != "" {
		t.Errorf("status and reason that were counted (-want +have):\n%s", diff)
	}

	if taken := want == http.StatusOK; taken != (len(deliveries) == 1) {
		t.Errorf("deliveries %+v with status %d", deliveries, status)
	}

	for _, delivery := range deliveries {
		if delivery.Runtime != "runtime-a" {
			t.Errorf("delivery of %q, want runtime-a", delivery.Runtime)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// largest returns a heartbeat in which everything is as large as the contract allows.
func largest(source core.RuntimeID, epoch int) core.Batch {
	long := func(n int) string { return fmt.Sprintf("%0512d", n) }
	beat := &core.Heartbeat{
		ID: "id", Number: 1, Interval: time.Hour, Instance: long(epoch), Version: long(1), CertificateFingerprint: long(2),
		KeyMaterialError: long(3), ConfigHash: long(4), Canary: core.CanaryAlive, Dropped: map[core.Reason]int64{},
	}
	for n := range 64 {
		beat.CAFingerprints = append(beat.CAFingerprints, long(n))
		beat.Dropped[core.Reason(fmt.Sprintf("%064d", n))] = 1
	}

	return core.Batch{Source: source, Epoch: long(epoch), Heartbeat: beat}
}

// A hostile runtime takes at most 64 KiB for each manager. The test does not run beside others, as
// it measures the memory of the process.
func TestHostileRuntimeTakesLittleMemory(t *testing.T) {
	const hostile, epochs, most = 32, 24, 64 << 10
	watched := newFleet(t, fleet.Options{})
	l := newListener(t, listener.PeersFunc(named), listener.InsecureAllowAll(), &recorder{}, listener.Options{Fleet: watched})
	before := heap()

	for n := range hostile {
		id := core.RuntimeID(fmt.Sprintf("hostile-%d", n))
		for epoch := range epochs {
			// A query fills the header. The path shares the memory of the request line.
			r := batchFrom(t, id, largest(id, epoch))
			r.URL = must(url.ParseRequestURI(r.URL.Path + "?" + strings.Repeat("q", 60<<10)))(t)
			if w := serve(l, r); w.Code != http.StatusAccepted {
				t.Fatalf("heartbeat is answered %d %s", w.Code, w.Body)
			}
		}
	}

	each := (heap() - before) / hostile
	t.Logf("%d bytes for each hostile runtime", each)
	if each > most {
		t.Errorf("a hostile runtime takes %d bytes, want at most %d", each, most)
	}

	runtime.KeepAlive(watched)
	runtime.KeepAlive(l)
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // The first one moves pools to where the second one empties them.
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// The CA of a runtime that joined by itself may issue a certificate of another runtime, with the
// domain of that one. SAN pinning cannot refuse it, which is the control. CA pinning does.
func TestACANamesItsOwnRuntimeOnly(t *testing.T) {
	t.Parallel()

	ours := newAuthority(t, "control plane")
	joined := newAuthority(t, "joined runtime")
	between := joined.intermediate(t, "between")
	roots := x509.NewCertPool()
	roots.AddCert(ours.Certificate)
	roots.AddCert(joined.Certificate)
	foreign := fingerprint(joined.Certificate)
	mayName := func(ca string, runtime core.RuntimeID) bool { return ca != foreign || runtime == "runtime-a" }
	domains := listener.DomainsFunc(func(_ context.Context, id core.RuntimeID, _ *core.WatchEvent) (string, error) {
		return string(id) + ".example", nil
	})
	pinning := listener.SANPinning(domains)
	both := listener.AllOf(pinning, listener.CAPinning(mayName))

	for name, test := range map[string]struct {
		leaf     *leaf
		id       core.RuntimeID
		verifier core.Verifier
		want     int
	}{
		"control: SAN pinning alone": {joined.client(t, "runtime-b", dnsNames("runtime-b.example")), "runtime-b", pinning, http.StatusAccepted},
		"another runtime":            {joined.client(t, "runtime-b", dnsNames("runtime-b.example")), "runtime-b", both, http.StatusForbidden},
		"by an intermediate CA":      {between.client(t, "runtime-b", dnsNames("runtime-b.example")), "runtime-b", both, http.StatusForbidden},
		"its own runtime":            {joined.client(t, "runtime-a", dnsNames("runtime-a.example")), "runtime-a", both, http.StatusAccepted},
		"ours, of any runtime":       {ours.client(t, "runtime-b", dnsNames("runtime-b.example")), "runtime-b", both, http.StatusAccepted},
	} {
		for _, door := range []string{"TLS", "header"} {
			t.Run(name+", "+door, func(t *testing.T) {
				t.Parallel()

				peers := listener.FromTLS(func() *x509.CertPool { return roots }, listener.PeerOptions{})
				request := post("/v3/"+string(manager)+"/events", string(encode(t, change(test.id, 1))))
				if door == "TLS" {
					request.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{test.leaf.TLS.Leaf, between.Certificate}}
				} else {
					peers = listener.FromXFCC(listener.InsecureAnyProxy(), func() *x509.CertPool { return roots }, listener.PeerOptions{})
					request.Header.Set("X-Forwarded-Client-Cert", test.leaf.header()+";Chain=\""+escapedPEM(test.leaf.TLS.Leaf, between.Certificate)+"\"")
				}

				request.Header.Set("Content-Type", "application/cloudevents-batch+json")
				l := newListener(t, peers, test.verifier, &recorder{}, listener.Options{})
				response := serve(l, request)
				isRefused := strings.Contains(response.Body.String(), reasons.CAMismatch)
				if response.Code != test.want || isRefused != (test.want == http.StatusForbidden) {
					t.Errorf("answer %d %s, want %d", response.Code, response.Body, test.want)
				}
			})
		}
	}

	if err := listener.CAPinning(mayName).Verify(t.Context(), core.Peer{ID: "runtime-a"}, &core.WatchEvent{}); err == nil {
		t.Error("a sender without a verified chain passes")
	}
	peers := listener.FromTLS(func() *x509.CertPool { return roots }, listener.PeerOptions{})
	if _, err := listener.New(peers, listener.CAPinning(nil), handlers(&recorder{}), listener.Options{}); err == nil {
		t.Error("a pinning without its function is accepted")
	}
}
