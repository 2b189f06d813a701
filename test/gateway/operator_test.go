package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
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

// authorities are the CAs of a control plane.
type authorities struct{ runtimes, servers, gateways *testpki.CA }

func newAuthorities() authorities {
	return authorities{
		runtimes: lab.Must(testpki.NewCA("runtimes", testpki.Options{})),
		servers:  lab.Must(testpki.NewCA("servers", testpki.Options{})),
		gateways: lab.Must(testpki.NewCA("control plane", testpki.Options{})),
	}
}

func poolOf(pool *x509.CertPool) func() *x509.CertPool { return func() *x509.CertPool { return pool } }

func (a authorities) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{lab.Must(a.servers.Server("listener", testpki.Options{})).TLS},
	}
}

// operator is one manager. Three listeners feed its queue. SAN pinning reads a cache in memory.
type operator struct {
	cache    *controllerruntimetest.Cache
	runtimes *controllerruntime.Runtimes
	queue    *queue

	// native verifies in the handshake. The others believe a gateway, by its certificate or by its
	// address.
	native, proxyCertificate, proxyAddress *answers
}

// answers are those of one listener.
type answers struct {
	list[counted]

	addr string
}

type counted struct {
	status int
	reason string
}

func (a *answers) answered(_ string, _ core.Manager, status int, reason string, _ time.Duration) {
	a.add(counted{status, reason})
}

// list is a list that others read while it grows.
type list[T any] struct {
	mu  sync.Mutex
	all []T
}

func (l *list[T]) add(more ...T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, more...)
}

// since returns what was added after the first n.
func (l *list[T]) since(n int) []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all[n:])
}

func (l *list[T]) len() int { return len(l.since(0)) }

func startOperator(t *testing.T, ca authorities) *operator {
	t.Helper()
	o := &operator{cache: controllerruntimetest.NewCache()}
	o.runtimes = lab.Must(controllerruntime.NewRuntimes(t.Context(), o.cache, corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{}))
	o.queue = &queue{requests: controllerruntime.EnqueueOwner(controllerruntime.EnqueueByRuntime(o.runtimes))}
	o.listenAll(t, ca)
	return o
}

func (o *operator) listenAll(t *testing.T, ca authorities) {
	t.Helper()
	roots := poolOf(ca.runtimes.Pool())
	verified, asked := ca.serverTLS(), ca.serverTLS()
	verified.ClientAuth, verified.ClientCAs = tls.RequireAndVerifyClientCert, ca.runtimes.Pool()
	asked.ClientAuth = tls.RequestClientCert
	byCertificate := listener.ProxyCertificate(poolOf(ca.gateways.Pool()), gatewayName)
	byAddress := listener.ProxyAddresses(netip.MustParsePrefix(gatewayAddress + "/32"))
	o.native = o.listen(t, listener.FromTLSWithRoots(roots, listener.PeerOptions{}), verified)
	o.proxyCertificate = o.listen(t, listener.FromXFCC(byCertificate, roots, listener.PeerOptions{}), asked)
	o.proxyAddress = o.listen(t, listener.FromXFCC(byAddress, roots, listener.PeerOptions{}), nil)
}

// listen runs a listener until the test ends.
func (o *operator) listen(t *testing.T, peers listener.Peers, serving *tls.Config) *answers {
	t.Helper()
	bound := lab.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	a := &answers{addr: bound.Addr().String()}
	const plenty = 1 << 20 // Another test is about shares.
	l := lab.Must(listener.New(peers, listener.SANPinning(o.runtimes), map[core.Manager]core.Handler{component: o.queue},
		listener.Options{
			Listener: bound, TLS: serving, RuntimeRate: plenty, RuntimeBurst: plenty,
			Hooks: listener.Hooks{Answered: a.answered},
		}))
	lab.Run(t, "listener", l.Start)
	return a
}

// register creates or changes the object of a runtime.
func (o *operator) register(name, domain string) {
	o.cache.Set(&corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: lab.Namespace,
			Annotations: map[string]string{controllerruntime.DomainAnnotation: domain},
		},
	})
}

// queue records the requests that events lead to.
type queue struct {
	list[string]

	requests controllerruntime.MapFunc[reconcile.Request]
}

// Handle implements [core.Handler].
func (q *queue) Handle(ctx context.Context, d core.Delivery) error {
	requests, err := q.requests(ctx, d)
	for _, r := range requests {
		q.add(r.String())
	}
	return err
}
