// Package gateway attacks listeners behind a real nginx. The rotations through one are in test/loss.
package gateway_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	component = "kyma"
	// gatewayName is the SAN of the gateway's certificate.
	gatewayName = "gateway.istio-system.svc"
	// gatewayAddress is the source address of the gateway that is known by its address. Attackers
	// have 127.0.0.1.
	gatewayAddress = "127.0.0.2"
)

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

type message struct {
	leaf            *tls.Certificate
	header, trailer http.Header
	version         contract.Version
	http2           bool
	claims          string // the runtime that the event names
}

type answer struct {
	err    error
	status int
	// page means that nginx answered by itself, with a web page.
	page bool
}

// network is a manager with three listeners, and the gateways in front of them. SAN pinning reads a cache in memory.
type network struct {
	runtimes, servers *lab.PKI
	pinned            *controllerruntime.Runtimes
	fronts            map[way]string
	self, victim      *tls.Certificate
	// triggered are the requests that events led to, and counted the answers that the hooks of the listeners got.
	triggered, counted list
}

// list is a list that others read while it grows.
type list struct {
	mu  sync.Mutex
	all []string
}

func (l *list) add(more string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, more)
}

// since returns what was added after the first n.
func (l *list) since(n int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all[n:])
}

func (l *list) len() int { return len(l.since(0)) }

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{runtimes: lab.NewPKI(t), servers: lab.NewPKI(t)}
	gateways := lab.NewPKI(t)
	cache := controllerruntimetest.NewCache()
	n.pinned = lab.Must(controllerruntime.NewRuntimes(cache, lab.MetadataOf(corev1.SchemeGroupVersion.WithKind("ConfigMap")),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{}))
	for name, domain := range map[string]string{self: selfDomain, victim: victimDomain} {
		cache.Set(&corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: lab.Namespace,
				Annotations: map[string]string{controllerruntime.DomainAnnotation: domain},
			},
		})
	}
	n.self, n.victim = n.runtime(self, selfDomain), n.runtime(victim, victimDomain)
	roots := func() *x509.CertPool { return n.runtimes.CA.Pool() }
	verified := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{lab.Must(n.servers.CA.Server("listener", testpki.Options{})).TLS},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: roots(),
	}
	asked := verified.Clone()
	asked.ClientAuth = tls.RequestClientCert
	asked.ClientCAs = nil
	proved := listener.ProxyCertificate(func() *x509.CertPool { return gateways.CA.Pool() }, gatewayName)
	near := listener.ProxyAddresses(netip.MustParsePrefix(gatewayAddress + "/32"))
	var options lab.GatewayOptions
	front := n.runtimes.Volume(lab.Must(n.servers.CA.Server("gateway", testpki.Options{})))
	options.ClientCA, options.Certificate, options.Key = front.Paths()
	nearby := options
	nearby.Upstream = n.listen(t, listener.FromXFCC(near, roots, listener.PeerOptions{}), nil)
	nearby.Bind = gatewayAddress
	options.Upstream = n.listen(t, listener.FromXFCC(proved, roots, listener.PeerOptions{}), asked)
	back := n.servers.Volume(lab.Must(gateways.CA.Client("gateway", testpki.Options{DNSNames: []string{gatewayName}})))
	options.UpstreamCA, options.UpstreamCertificate, options.UpstreamKey = back.Paths()
	open := options
	open.Lax = true
	n.fronts = map[way]string{
		native:        n.listen(t, listener.FromTLS(roots, listener.PeerOptions{}), verified),
		byCertificate: lab.StartGateway(t, options).Addr, byAddress: lab.StartGateway(t, nearby).Addr, lax: lab.StartGateway(t, open).Addr,
	}
	return n
}

// listen runs a listener until the test ends, and returns its address.
func (n *network) listen(t *testing.T, peers listener.Peers, serving *tls.Config) string {
	t.Helper()
	bound := lab.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	const plenty = 1 << 20 // Another test is about shares.
	l := lab.Must(listener.New(peers, listener.SANPinning(n.pinned), map[core.Manager]core.Handler{component: n}, listener.Options{
		Listener: bound, TLS: serving, RuntimeRate: plenty, RuntimeBurst: plenty,
		Hooks: listener.Hooks{Answered: func(a hook.Answer) {
			n.counted.add(fmt.Sprintf("%d %s", a.Status, a.Reason))
		}},
	}))
	lab.Run(t, "listener", l.Start)
	return bound.Addr().String()
}

// Handle implements [core.Handler].
func (n *network) Handle(ctx context.Context, d core.Delivery) error {
	var requests []reconcile.Request
	requests, err := controllerruntime.EnqueueOwner(controllerruntime.EnqueueByRuntime(n.pinned))(ctx, d)
	for _, r := range requests {
		n.triggered.add(r.String())
	}
	return err
}

// send sends m over a connection of its own.
func (n *network) send(t *testing.T, w way, m message) answer {
	t.Helper()
	// Trailers need a body in chunks, which has no known length.
	var text io.Reader = bytes.NewReader(body(m.version, m.claims))
	if m.trailer != nil {
		text = io.MultiReader(text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), lab.Patience)
	defer cancel()
	request := lab.Must(http.NewRequestWithContext(ctx, http.MethodPost, "https://"+n.fronts[w]+m.version.Path(component),
		text))
	request.Trailer = m.trailer
	request.Header.Set("Content-Type", m.version.ContentType())
	maps.Copy(request.Header, m.header)
	var protocols http.Protocols
	protocols.SetHTTP1(!m.http2)
	protocols.SetHTTP2(m.http2)
	client := &http.Client{Transport: &http.Transport{Protocols: &protocols, TLSClientConfig: n.client(m.leaf)}}
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

// client returns the configuration of a client with that certificate.
func (n *network) client(leaf *tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: n.servers.CA.Pool(), ServerName: "localhost",
		// With Certificates, a client would not show those of a CA that the server does not name.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return leaf, nil },
	}
}

// runtime returns the good certificate of a runtime.
func (n *network) runtime(name string, domains ...string) *tls.Certificate {
	return n.with(name, testpki.Options{DNSNames: domains})
}

// with returns a certificate of the CA of the runtimes.
func (n *network) with(name string, opts testpki.Options) *tls.Certificate {
	return new(lab.Must(n.runtimes.CA.Client(name, opts)).TLS)
}

// headerOf returns the header that the gateway writes for a client.
func headerOf(leaf *tls.Certificate) string { return lab.ByGateway(leaf.Leaf) }

// unfinished returns the header that the gateway writes for a client, up to the value of Subject.
func unfinished(leaf *tls.Certificate) string {
	before, _, _ := strings.Cut(headerOf(leaf), "CN=")
	return before
}

const headerXFCC = "X-Forwarded-Client-Cert"

func xfcc(lines ...string) http.Header { return http.Header{headerXFCC: lines} }
