package gateway_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/pem"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// patience bounds every wait, on a busy machine, too.
const patience = 2 * time.Minute

// way is how a request reaches a listener.
type way string

const (
	// native is mTLS to the listener.
	native way = "natively"
	// byCertificate and byAddress are through nginx, which proves to be the gateway by its
	// certificate or its address.
	byCertificate way = "nginx known by its certificate"
	byAddress     way = "nginx known by its address"
	// lax is through an nginx that asks for a certificate and verifies nothing.
	lax way = "lax nginx"
)

// ways are those that a legitimate runtime can take.
var ways = []way{native, byCertificate, byAddress, lax}

// message is one request.
type message struct {
	leaf            *tls.Certificate // nil: shows no certificate
	header, trailer http.Header
	version         contract.Version
	http2           bool
	claims          string // the runtime that the event names
}

// answer is the answer to a message.
type answer struct {
	err    error
	status int
	// page means that nginx answered by itself, with a web page.
	page bool
}

// network is an operator with its listeners, and the gateways in front of it.
type network struct {
	ca           authorities
	at           *operator
	fronts       map[way]string
	listeners    map[way]*answers
	self, victim *tls.Certificate
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	ca := newAuthorities()
	at := startOperator(t, ca)
	key := lab.Must(ca.gateways.Client("gateway", testpki.Options{DNSNames: []string{gatewayName}}))
	front := volume(t, lab.Must(ca.servers.Server("gateway", testpki.Options{})), ca.runtimes)
	back := volume(t, key, ca.servers)
	var proved lab.GatewayOptions
	proved.ClientCA, proved.Certificate, proved.Key = front.Paths()
	near := proved
	near.Upstream, near.Bind = at.proxyAddress.addr, gatewayAddress
	proved.Upstream = at.proxyCertificate.addr
	proved.UpstreamCA, proved.UpstreamCertificate, proved.UpstreamKey = back.Paths()
	open := proved
	open.Lax = true
	n := &network{
		ca: ca, at: at,
		fronts: map[way]string{
			native: at.native.addr, byCertificate: lab.StartGateway(t, proved).Addr,
			byAddress: lab.StartGateway(t, near).Addr, lax: lab.StartGateway(t, open).Addr,
		},
		listeners: map[way]*answers{
			native: at.native, byCertificate: at.proxyCertificate, lax: at.proxyCertificate, byAddress: at.proxyAddress,
		},
	}
	n.self, n.victim = n.runtime(self, selfDomain), n.runtime(victim, victimDomain)
	at.register(self, selfDomain)
	at.register(victim, victimDomain)
	return n
}

// volume returns a secret volume with a leaf and the CAs to trust.
func volume(t *testing.T, leaf *testpki.Leaf, cas ...*testpki.CA) *testpki.Volume {
	t.Helper()
	v := testpki.NewVolume(t.TempDir())
	if err := v.Write(testpki.Files(leaf, cas...)); err != nil {
		t.Fatal(err)
	}
	return v
}

// send sends m over a connection of its own.
func (n *network) send(t *testing.T, w way, m message) answer {
	t.Helper()
	// Trailers need a body in chunks, which has no known length.
	var text io.Reader = bytes.NewReader(body(m.version, m.claims))
	if m.trailer != nil {
		text = io.MultiReader(text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request := lab.Must(http.NewRequestWithContext(ctx, http.MethodPost, "https://"+n.fronts[w]+m.version.Path(component),
		text))
	request.Trailer = m.trailer
	request.Header.Set("Content-Type", m.version.ContentType())
	maps.Copy(request.Header, m.header)
	client := n.client(m.leaf, m.http2)
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return answer{err: err}
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body) // Only the status counts.
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return answer{status: response.StatusCode, page: media == "text/html"}
}

// client returns a client with that certificate.
func (n *network) client(leaf *tls.Certificate, http2 bool) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	return &http.Client{Timeout: patience, Transport: &http.Transport{
		Protocols: &protocols,
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS13,
			RootCAs:    n.ca.servers.Pool(),
			// With Certificates, a client would not show those of a CA that the server does not name.
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if leaf == nil {
					return &tls.Certificate{}, nil
				}
				return leaf, nil
			},
		},
	}}
}

// runtime returns the good certificate of a runtime.
func (n *network) runtime(name string, domains ...string) *tls.Certificate {
	return n.with(name, testpki.Options{DNSNames: domains})
}

// with returns a certificate of the CA of the runtimes.
func (n *network) with(name string, opts testpki.Options) *tls.Certificate {
	return new(lab.Must(n.ca.runtimes.Client(name, opts)).TLS)
}

// headerOf returns the header that the gateway writes for a client.
func headerOf(leaf *tls.Certificate) string { return unfinished(leaf) + `CN=somebody";URI=` }

// unfinished returns the header that the gateway writes for a client, up to the value of Subject.
func unfinished(leaf *tls.Certificate) string {
	sum := sha256.Sum256(leaf.Certificate[0])
	return `Hash=` + hex.EncodeToString(sum[:]) + `;Cert="` + escaped(leaf) + `";Subject="`
}

const headerXFCC = "X-Forwarded-Client-Cert"

func xfcc(lines ...string) http.Header { return http.Header{headerXFCC: lines} }

// escaped returns a certificate as a gateway forwards it.
func escaped(leaf *tls.Certificate) string {
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]})
	return strings.ReplaceAll(url.PathEscape(string(text)), "+", "%2B")
}
