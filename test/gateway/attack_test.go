package gateway_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	// self is the runtime of the attacker, victim the runtime that the attacker tries to trigger.
	self, victim             = "runtime-a", "runtime-b"
	selfDomain, victimDomain = "a.example.com", "b.example.com"
)

// passed is the outcome of an event that was taken, and triggered the runtime that sent it. Others are
// "<status> <reason>": the answer of the listener with the reason that it counted.
const passed = "taken"

func forbidden(reason string) string { return "403 " + reason }

// want has the expected outcome of an attack, the same in each way.
type want map[contract.Version]string

// attack is one attack, with an event that names the victim. All are tried natively and through each
// nginx, with every contract and version of HTTP.
type attack struct {
	message

	name string
	// http1 leaves HTTP/2 out.
	http1 bool
	want  want
}

// TestAttacks tries attacks that need a real gateway. After each attack the legitimate runtime passes.
// The tables of all bad certificates, headers and proxies are in package listener, and those of
// registrations in adapters/controllerruntime. The lax nginx shows that the listener does not rely on
// what a gateway verifies.
func TestAttacks(t *testing.T) {
	n := newNetwork(t)
	for _, a := range slices.Concat(n.claims(), n.headers()) {
		t.Run(a.name, func(t *testing.T) { n.run(t, a) })
	}
	// One event of its own would have triggered the victim at any time.
	if slices.Contains(n.triggered.since(0), owner(victim).String()) {
		t.Error("the victim was triggered")
	}
	for _, w := range ways {
		n.passes(t, w, n.victim, victim)
	}
}

func (n *network) run(t *testing.T, a attack) {
	t.Helper()
	for _, w := range ways {
		for _, version := range contract.Versions() {
			for _, http2 := range []bool{false, true} {
				if http2 && a.http1 {
					continue
				}
				m := a.message
				m.version = version
				m.http2 = http2
				m.claims = victim
				lab.Same(t, fmt.Sprintf("%s, %s, HTTP/2 %t", w, version, http2), a.want[version], n.try(t, w, m))
			}
		}
		n.passes(t, w, n.self, self)
	}
}

// passes sends a legitimate event, which must trigger the runtime that sends it.
func (n *network) passes(t *testing.T, w way, leaf *tls.Certificate, name string) {
	t.Helper()
	before := n.triggered.len()
	lab.Same(t, string(w)+": event of "+name, passed, n.try(t, w, message{leaf: leaf, version: contract.V3, http2: true, claims: name}))
	lab.Same(t, string(w)+": triggered by "+name, []string{owner(name).String()}, n.triggered.since(before))
}

// try makes one attempt and returns its outcome. A refused request must enqueue nothing.
func (n *network) try(t *testing.T, w way, m message) string {
	t.Helper()
	queued, counted := n.triggered.len(), n.counted.len()
	outcome := n.outcome(t, n.send(t, w, m), counted)
	if added := n.triggered.since(queued); outcome != passed && len(added) > 0 || outcome == passed && len(added) != 1 {
		t.Errorf("%s: %s, and it triggers %q", w, outcome, added)
	}
	return outcome
}

// outcome compares an answer with the one that the listener counted. The listener counts after it
// has answered.
func (n *network) outcome(t *testing.T, got answer, counted int) string {
	t.Helper()
	switch {
	case got.err != nil:
		return got.err.Error()
	case got.page:
		return strconv.Itoa(got.status) + " by nginx"
	}
	lab.Eventually(t, lab.Patience, "the listener has counted the answer", func() bool { return n.counted.len() > counted })
	last := n.counted.since(counted)[0]
	if reason, same := strings.CutPrefix(last, strconv.Itoa(got.status)+" "); !same {
		t.Errorf("answered %d and counted %s", got.status, last)
	} else if reason == "" && got.status/100 == 2 {
		return passed
	}
	return last
}

// body is an event that claims, where its contract can, to come from a runtime.
func body(v contract.Version, runtime string) []byte {
	event := core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: "object"},
		WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
	}
	if v == contract.V1 {
		event.Owner = owner(runtime)
	}
	return lab.Must(v.Encode(&core.Batch{
		Source: core.RuntimeID(runtime), Events: []core.Numbered{{WatchEvent: event, ID: "1"}},
	})).Body
}

func owner(runtime string) types.NamespacedName {
	return types.NamespacedName{Namespace: lab.Namespace, Name: runtime}
}

func byVersion(v1, v2, v3 string) want {
	return want{contract.V1: v1, contract.V2: v2, contract.V3: v3}
}

// ignored is the outcome of an event of self that claims to be the victim. Contract v2 has no
// claim.
func ignored() want {
	return byVersion(forbidden("owner_mismatch"), passed, forbidden(reasons.SourceMismatch))
}

// claims are made with certificates that verify.
func (n *network) claims() []attack {
	const refused = "403 san_mismatch"
	mismatch := byVersion(refused, refused, refused)
	unknown := byVersion(forbidden("owner_mismatch"),
		forbidden("runtime_unknown"), forbidden(reasons.SourceMismatch))
	twoNames := testpki.Options{DNSNames: []string{selfDomain}, Edit: func(c *x509.Certificate) {
		name := asn1.ObjectIdentifier{2, 5, 4, 3}
		c.Subject = pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{
			{Type: name, Value: self},
			{Type: name, Value: victim},
		}}
	}}
	return []attack{
		{name: "the victim as owner and source", message: message{leaf: n.self}, want: ignored()},
		{name: "name of the victim, SAN of self", message: message{leaf: n.runtime(victim, selfDomain)}, want: mismatch},
		{name: "name of the victim, wildcard SAN", message: message{leaf: n.runtime(victim, "*.example.com")}, want: mismatch},
		{name: "names of self and of the victim", message: message{leaf: n.with("", twoNames)}, want: mismatch},
		{name: "domain of the victim as name", message: message{leaf: n.runtime(victimDomain, selfDomain)}, want: unknown},
		{name: "SAN of the victim, name in capitals", message: message{leaf: n.runtime("Runtime-B", victimDomain)}, want: unknown},
	}
}

// headers accompany the good certificate of self. nginx must replace them, and the native listener
// must ignore them.
func (n *network) headers() []attack {
	good := headerOf(n.victim)
	with := func(name string, header http.Header) attack {
		return attack{name: name, message: message{leaf: n.self, header: header}, want: ignored()}
	}
	// A certificate of the trusted CA. Its subject tries to leave the quotes of the header.
	subject := func(name, text string) attack {
		leaf := n.with(self, testpki.Options{DNSNames: []string{selfDomain}, Edit: func(c *x509.Certificate) {
			c.Subject.Locality = []string{text}
		}})
		return attack{name: name, message: message{leaf: leaf}, want: ignored()}
	}
	hop := with("header named as hop by hop", http.Header{"Connection": {headerXFCC}, headerXFCC: {good}})
	hop.http1 = true
	// nginx ends an HTTP/2 connection that has trailers.
	trailer := attack{name: "header as a trailer", message: message{leaf: n.self, trailer: xfcc(good)}, http1: true, want: ignored()}
	return []attack{
		with("header of the victim", xfcc(good)),
		with("header in two lines", xfcc(good, headerOf(n.self))),
		with("header in lower case", http.Header{"x-forwarded-client-cert": {good}}),
		with("header with underscores", http.Header{"x_forwarded_client_cert": {good}}),
		hop, trailer,
		subject(`subject of ";Cert="`, `";Cert="`+strings.Split(good, `"`)[1]),
		subject(`subject of ",Cert="`, `",`+unfinished(n.victim)),
		subject(`subject of \",Cert="`, `\",`+unfinished(n.victim)),
		subject("subject of line breaks", "\r\n"+headerXFCC+": "+good+"\r\n"),
	}
}

// smuggled is text on the wire that two servers may parse in two ways. Inside or behind a valid
// request it has another one with the header of the victim. A server that parsed it as a request of
// the gateway would trigger the victim.
type smuggled struct{ name, text string }

// head begins a request of self, up to the middle of its header.
const head = "POST /v2/" + component + "/event HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

// beside returns a valid body of self.
func beside() string { return string(body(contract.V2, self)) }

func sized(body string) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body) }

func smuggledRequests(header, hidden string) []smuggled {
	const end = "0\r\n\r\n"
	forged := headerXFCC + ": " + header + "\r\n"
	return []smuggled{
		{"a length and chunks", head + "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n" + end + hidden},
		{"chunks that one reader does not see", head + "Transfer-Encoding: xchunked\r\n" + sized(end+hidden)},
		{"chunks behind a tab", head + "Transfer-Encoding:\tchunked\r\n" + sized(end+hidden)},
		{"chunks behind a blank before the colon", head + "Transfer-Encoding : chunked\r\n" + sized(end+hidden)},
		{"chunks, and another coding", head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n" + sized(end+hidden)},
		{"two lengths", head + "Content-Length: 0\r\n" + sized(hidden)},
		{"a length with a sign", head + "Content-Length: +0\r\n\r\n" + hidden},
		{"a chunk whose size overflows", head + "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n" + hidden},
		{"a chunk extension with a line feed", head + "Transfer-Encoding: chunked\r\n\r\n2;\nxx\r\n" + end + hidden},
		{"pipelined, in the body", head + sized(beside()+hidden)},
		{"an upgrade to HTTP/2", head + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" +
			"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n" + sized(beside()) + hidden},
		{"a tunnel", "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n" + hidden},
		{"an absolute address", strings.Replace(head, "/v2/", "https://localhost/v2/", 1) + forged + sized(beside())},
		{"the header with a blank before its colon", head + strings.Replace(forged, ":", " :", 1) + sized(beside())},
		{"the header as a folded line", head + "X-Other: a\r\n " + forged + sized(beside())},
		{"the header behind a bare line feed", head + "X-Other: a\n" + forged + sized(beside())},
		{"the header behind a bare carriage return", head + "X-Other: a\r" + forged + sized(beside())},
		{"the header behind a NUL", head + "X-Other: a\x00" + forged + sized(beside())},
		{"the header twice, in two spellings", head + forged + strings.ToUpper(headerXFCC) + ": " + header + "\r\n" + sized(beside())},
		{"the header in the path", strings.Replace(head, "/event", "/event?a=%0d%0a"+
			strings.ReplaceAll(strings.TrimSpace(forged), " ", "%20"), 1) + sized(beside())},
	}
}

// TestSmuggling writes bytes that no HTTP client would, through nginx. The answers differ from
// version to version of nginx. The victim is never triggered.
func TestSmuggling(t *testing.T) {
	n := newNetwork(t)
	body := beside()
	hidden := head + headerXFCC + ": " + headerOf(n.victim) + "\r\n" + sized(body)
	for _, s := range smuggledRequests(headerOf(n.victim), hidden) {
		t.Run(s.name, func(t *testing.T) {
			for _, w := range []way{byCertificate, lax} {
				before := n.triggered.len()
				answers := n.write(t, w, s.text)
				// A hidden request would come before this one, on connections that nginx keeps to
				// the listener.
				n.arrives(t, w, n.self, self)
				added := n.triggered.since(before)
				if slices.Contains(added, owner(victim).String()) {
					t.Errorf("%s: the victim was triggered: %q", w, added)
				}
				t.Logf("%s: %s", w, answers)
			}
		})
	}
	n.arrives(t, byCertificate, n.victim, victim)
}

// arrives sends a legitimate event beside requests that may not be over.
func (n *network) arrives(t *testing.T, w way, leaf *tls.Certificate, name string) {
	t.Helper()
	before := n.triggered.len()
	got := n.send(t, w, message{leaf: leaf, version: contract.V3, http2: true, claims: name})
	if added := n.triggered.since(before); got.status/100 != 2 || !slices.Contains(added, owner(name).String()) {
		t.Errorf("%s: an event of %s is answered %d (%v), and triggers %q", w, name, got.status, got.err, added)
	}
}

// write sends text over a connection of self and returns the statuses of all answers, up to the end
// of the connection.
func (n *network) write(t *testing.T, w way, text string) string {
	t.Helper()
	config := n.client(n.self)
	config.NextProtos = []string{"http/1.1"}
	dialer := &tls.Dialer{Config: config}
	conn := lab.Must(dialer.DialContext(t.Context(), "tcp", n.fronts[w]))
	defer conn.Close() // Nothing more is expected.
	// A server that waits for more text has parsed no request.
	const silence = 150 * time.Millisecond
	_, _ = io.WriteString(conn, text) // The server may have refused it in the middle.
	var statuses []string
	for answers := bufio.NewReader(conn); ; {
		_ = conn.SetReadDeadline(time.Now().Add(silence)) // A TLS connection has deadlines.
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			break
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		statuses = append(statuses, strconv.Itoa(response.StatusCode))
	}
	return strings.Join(statuses, ", ")
}
