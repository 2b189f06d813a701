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

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/gateway"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// patience bounds what anything may take on a busy machine.
const patience = 30 * time.Second

// way is how a request gets to a listener: a column of the table.
type way int

const (
	// handshake is native mTLS where the handshake verifies.
	handshake way = iota
	// native is native mTLS where each request is verified, and answered.
	native
	// byCertificate and byAddress are through nginx, which proves to be the gateway by its certificate or its address.
	byCertificate
	byAddress
	// lax is through an nginx that asks for a certificate and verifies nothing, proved by its certificate.
	lax
	// pastCertificate and pastAddress go straight to the pod that stands behind the gateway, with the header that it would write.
	pastCertificate
	pastAddress
	// written is what arrives if the gateway itself writes the header as the row says: it holds the gateway's key.
	written

	ways
)

func (w way) String() string {
	return [...]string{
		"native: handshake", "native: request", "nginx: certificate", "nginx: address", "lax nginx",
		"past nginx: certificate", "past nginx: address", "nginx's own key",
	}[w]
}

// legitimate reports whether a runtime can get through this way at all.
func (w way) legitimate() bool { return w != pastCertificate && w != pastAddress }

// nginx reports whether a real nginx is on the way.
func (w way) nginx() bool { return w == byCertificate || w == byAddress || w == lax }

// message is one request of somebody.
type message struct {
	leaf    *tls.Certificate // nil: shows no certificate
	header  http.Header
	trailer http.Header
	version contract.Version
	path    string
	body    []byte
	http2   bool
}

// answer is what became of it.
type answer struct {
	err    error
	status int
	// page means that the answer is for people: nginx refused by itself.
	page bool
	// proto is the major version of HTTP.
	proto int
}

// network is everything that requests can be sent through.
type network struct {
	ca      authorities
	at      *operator
	gateway *tls.Certificate
	fronts  map[way]string
}

func newNetwork(t *testing.T) *network {
	t.Helper()

	ca := newAuthorities()
	n := &network{
		ca: ca, at: startOperator(t, ca), fronts: map[way]string{},
	}
	key := must(ca.gateways.Client("gateway", testpki.Options{DNSNames: []string{gatewayName}}))
	n.gateway = new(key.TLS())

	front := volume(t, must(ca.servers.Server("gateway", testpki.Options{})), ca.runtimes)
	back := volume(t, key, ca.servers)
	common := gateway.Options{
		Certificate: front.Path(testpki.FileCert), Key: front.Path(testpki.FileKey), ClientCA: front.Path(testpki.FileCA),
	}

	proved := common
	proved.Upstream = n.at.proxyCert.addr
	proved.UpstreamCA, proved.UpstreamCertificate, proved.UpstreamKey = back.Paths()
	n.fronts[byCertificate] = gateway.Start(t, proved).Addr

	near := common
	near.Upstream, near.Bind = n.at.proxyAddr.addr, gatewayAddress
	n.fronts[byAddress] = gateway.Start(t, near).Addr

	proved.Lax = true
	n.fronts[lax] = gateway.Start(t, proved).Addr

	n.fronts[handshake], n.fronts[native] = n.at.handshake.addr, n.at.request.addr
	n.fronts[pastCertificate], n.fronts[written] = n.at.proxyCert.addr, n.at.proxyCert.addr
	n.fronts[pastAddress] = n.at.proxyAddr.addr

	return n
}

// volume returns a secret volume with a leaf and the CAs to trust.
func volume(t *testing.T, leaf *testpki.Leaf, cas ...*testpki.CA) *testpki.Volume {
	t.Helper()

	v := testpki.NewVolume(t.TempDir())
	if err := v.Write(must(testpki.Files(leaf, cas...))); err != nil {
		t.Fatal(err)
	}

	return v
}

// counts is the listener at the end of a way.
func (n *network) counts(w way) *counted {
	switch w {
	case handshake:
		return n.at.handshake
	case native:
		return n.at.request
	case byAddress, pastAddress:
		return n.at.proxyAddr
	default:
		return n.at.proxyCert
	}
}

// send sends m over a connection of its own.
func (n *network) send(t *testing.T, w way, m message) answer {
	t.Helper()

	client, done := n.client(w, m.leaf, m.http2)
	defer done()

	return n.sendBy(t, client, w, m)
}

// sendBy sends m with a client of [network.client], whose certificate counts.
func (n *network) sendBy(t *testing.T, client *http.Client, w way, m message) answer {
	t.Helper()

	scheme := "https://"
	if w == pastAddress {
		scheme = "http://"
	}

	// Without its length it is sent in chunks, as trailers need it.
	var body io.Reader = bytes.NewReader(m.body)
	if m.trailer != nil {
		body = io.MultiReader(body)
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	request := must(http.NewRequestWithContext(ctx, http.MethodPost, scheme+n.fronts[w]+m.path, body))
	request.Trailer = m.trailer
	maps.Copy(request.Header, m.header)

	if request.Header.Get("Content-Type") == "" {
		request.Header.Set("Content-Type", m.version.ContentType())
	}

	response, err := client.Do(request)
	if err != nil {
		return answer{err: err}
	}
	defer response.Body.Close()

	_, _ = io.Copy(io.Discard, response.Body) // The status is what counts.

	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))

	return answer{status: response.StatusCode, page: media == "text/html", proto: response.ProtoMajor}
}

// client returns a client that shows leaf, or the gateway's certificate where the way is that of its key.
func (n *network) client(w way, leaf *tls.Certificate, http2 bool) (client *http.Client, done func()) {
	if w == written {
		leaf = n.gateway
	}

	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	protocols.SetUnencryptedHTTP2(http2)

	transport := &http.Transport{Protocols: &protocols, TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    n.ca.servers.Pool(),
		// Not Certificates: a client would keep back those that the server's CA did not issue.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if leaf == nil {
				return &tls.Certificate{}, nil
			}

			return leaf, nil
		},
	}}

	return &http.Client{Transport: transport, Timeout: patience}, transport.CloseIdleConnections
}

// headerOf is what the gateway writes about a client, and chain what Envoy adds.
func headerOf(leaf *tls.Certificate) string {
	if leaf == nil {
		return `Hash=;Cert="";Subject="";URI=`
	}

	return `Hash=` + hashOf(leaf) + `;Cert="` + escaped(leaf, 1) + `";Subject="CN=somebody";URI=`
}

// unfinished is what the gateway would write about a client, up to a Subject that it goes on with.
func unfinished(leaf *tls.Certificate) string {
	return `Hash=` + hashOf(leaf) + `;Cert="` + escaped(leaf, 1) + `";Subject="`
}

func xfcc(lines ...string) http.Header { return http.Header{listener.HeaderXFCC: lines} }

func hashOf(leaf *tls.Certificate) string {
	sum := sha256.Sum256(leaf.Certificate[0])

	return hex.EncodeToString(sum[:])
}

// escaped is the first n certificates of a chain, as a gateway forwards them.
func escaped(chain *tls.Certificate, n int) string {
	var text []byte
	for _, der := range chain.Certificate[:n] {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}

	return strings.ReplaceAll(url.PathEscape(string(text)), "+", "%2B")
}

// eventually waits until condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	rig.Eventually(t, patience, what, condition)
}
