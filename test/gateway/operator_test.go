package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	prom "github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

const (
	component = "kyma"
	// gatewayName is the SAN by which the gateway is known.
	gatewayName = "gateway.istio-system.svc"
	// gatewayAddress is where the gateway that is known by its address connects from. Attackers have 127.0.0.1.
	gatewayAddress = "127.0.0.2"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}

	return value
}

// authorities are the CAs of a control plane.
type authorities struct{ runtimes, servers, gateways *testpki.CA }

func newAuthorities() authorities {
	return authorities{
		runtimes: must(testpki.NewCA("runtimes", testpki.Options{})),
		servers:  must(testpki.NewCA("servers", testpki.Options{})),
		gateways: must(testpki.NewCA("control plane", testpki.Options{})),
	}
}

func poolOf(pool *x509.CertPool) listener.RootsFunc { return func() *x509.CertPool { return pool } }

func (a authorities) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{must(a.servers.Server("listener", testpki.Options{})).TLS()},
	}
}

// operator is one manager whose controller is fed by several listeners, one for each way to prove who a peer is. SAN pinning asks its cache,
// which watches a real API server.
type operator struct {
	plane    *controlplane.ControlPlane
	mgr      manager.Manager
	queue    *countedQueue
	runtimes *controllerruntime.Runtimes
	source   *controllerruntime.Source[reconcile.Request]

	// handshake verifies in the handshake, request for each request; proxyCert believes a gateway by its certificate, proxyAddr
	// one by its address.
	handshake, request, proxyCert, proxyAddr *counted
}

// counted is a listener with metrics of its own.
type counted struct {
	addr     string
	registry *prom.Registry
}

func startOperator(t *testing.T, ca authorities) *operator {
	t.Helper()

	o := &operator{plane: controlplane.StartT(t, controlplane.Options{}), queue: &countedQueue{}}
	o.mgr = must(ctrl.NewManager(o.plane.Config, ctrl.Options{
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	}))

	ctx, stop := context.WithCancel(context.Background())
	o.runtimes = must(controllerruntime.NewRuntimes(ctx, o.mgr.GetCache(), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{}))
	o.source = controllerruntime.NewSource(controllerruntime.EnqueueOwnerOr(controllerruntime.EnqueueByRuntime(o.runtimes)),
		controllerruntime.SourceOptions{Elected: o.mgr.Elected()})

	runtimes, gateways := ca.runtimes.Pool(), ca.gateways.Pool()
	rootsOf := poolOf(runtimes)

	verified := ca.serverTLS()
	verified.ClientAuth, verified.ClientCAs = tls.RequireAndVerifyClientCert, runtimes
	asked := ca.serverTLS()
	asked.ClientAuth = tls.RequestClientCert

	o.handshake = o.listen(t, listener.FromTLS(listener.PeerOptions{}), verified)
	o.request = o.listen(t, listener.FromTLSWithRoots(rootsOf, listener.PeerOptions{}), asked)
	o.proxyCert = o.listen(t,
		listener.FromXFCC(listener.ProxyCertificate(poolOf(gateways), gatewayName), rootsOf, listener.PeerOptions{}), asked)
	o.proxyAddr = o.listen(t,
		listener.FromXFCC(listener.ProxyAddresses(netip.MustParsePrefix(gatewayAddress+"/32")), rootsOf, listener.PeerOptions{}), nil)

	reconciler := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) { return reconcile.Result{}, nil })
	if err := ctrl.NewControllerManagedBy(o.mgr).Named(component).WatchesRawSource(o.source).
		WithOptions(controller.Options{NewQueue: o.queue.wrap}).Complete(reconciler); err != nil {
		t.Fatal(err)
	}

	ended := make(chan error, 1)

	go func() { ended <- o.mgr.Start(ctx) }()

	t.Cleanup(func() {
		stop()

		if err := <-ended; err != nil {
			t.Errorf("operator: %v", err)
		}
	})

	if !o.mgr.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the operator's cache does not sync")
	}

	return o
}

// listen adds a listener to the manager.
func (o *operator) listen(t *testing.T, peers listener.PeerSource, serving *tls.Config) *counted {
	t.Helper()

	bound := must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	c := &counted{addr: bound.Addr().String(), registry: prom.NewRegistry()}
	metrics := must(prometheus.NewListener(c.registry, prometheus.Options{}))

	const plenty = 1 << 20 // Shares are another test's concern.

	l := must(listener.New(peers, listener.SANPinning(o.runtimes), map[core.Manager]core.Handler{component: o.source}, listener.Options{
		Listener: bound, TLS: serving, RuntimeRate: plenty, RuntimeBurst: plenty,
		Hooks: listener.Hooks{Answered: metrics.Answered, InFlight: metrics.InFlight, HandshakeFailed: metrics.HandshakeFailed},
	}))
	if err := o.mgr.Add(l); err != nil {
		t.Fatal(err)
	}

	return c
}

// register creates the object that stands for a runtime, and returns when the operator's cache has it. The domain nil leaves the
// annotation out.
func (o *operator) register(t *testing.T, namespace, name string, domain *string) {
	t.Helper()

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	if domain != nil {
		object.Annotations = map[string]string{controllerruntime.DomainAnnotation: *domain}
	}

	if err := o.plane.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}

	o.await(t, object, func(cached *metav1.PartialObjectMetadata) bool { return cached != nil })
}

// annotate changes the domain of a runtime; nil removes it.
func (o *operator) annotate(t *testing.T, name string, domain *string) {
	t.Helper()

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: rig.Namespace}}
	if domain != nil {
		object.Annotations = map[string]string{controllerruntime.DomainAnnotation: *domain}
	}

	if err := o.plane.Client.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}

	o.await(t, object, func(cached *metav1.PartialObjectMetadata) bool {
		return cached != nil && cached.ResourceVersion == object.ResourceVersion
	})
}

func (o *operator) remove(t *testing.T, name string) {
	t.Helper()

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: rig.Namespace}}
	if err := o.plane.Client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}

	o.await(t, object, func(cached *metav1.PartialObjectMetadata) bool { return cached == nil })
}

// await waits until the cache that SAN pinning asks knows of a change. It is given nil when the object is not there.
func (o *operator) await(t *testing.T, object *corev1.ConfigMap, known func(*metav1.PartialObjectMetadata) bool) {
	t.Helper()

	rig.Eventually(t, patience, "the operator's cache knows of "+object.Name, func() bool {
		cached := &metav1.PartialObjectMetadata{}
		cached.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))

		if err := o.mgr.GetCache().Get(t.Context(), client.ObjectKeyFromObject(object), cached); err != nil {
			cached = nil
		}

		return known(cached)
	})
}

// countedQueue remembers what was put into the workqueue of the controller.
type countedQueue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]

	mu    sync.Mutex
	added []string
}

func (q *countedQueue) wrap(
	name string, limiter workqueue.TypedRateLimiter[reconcile.Request],
) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	q.TypedRateLimitingInterface = workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
		workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name})

	return q
}

// Add implements the workqueue: the source uses nothing else.
func (q *countedQueue) Add(r reconcile.Request) {
	q.mu.Lock()
	q.added = append(q.added, r.String())
	q.mu.Unlock()

	q.TypedRateLimitingInterface.Add(r)
}

// since returns what was added after the first n.
func (q *countedQueue) since(n int) []string {
	q.mu.Lock()
	defer q.mu.Unlock()

	return slices.Clone(q.added[n:])
}

func (q *countedQueue) len() int { return len(q.since(0)) }

// answers returns how many requests were answered by "status reason", and how many handshakes failed.
func (c *counted) answers() map[string]float64 {
	counts := map[string]float64{}

	for _, family := range must(c.registry.Gather()) {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}

			switch family.GetName() {
			case "runtime_watcher_listener_requests_total":
				counts[strings.TrimSpace(labels["code"]+" "+labels["reason"])] += metric.GetCounter().GetValue()
			case "runtime_watcher_listener_tls_handshake_failures_total":
				counts[string(failedHandshake)] += metric.GetCounter().GetValue()
			}
		}
	}

	return counts
}

// more returns what was counted beyond before.
func (c *counted) more(before map[string]float64) string {
	var more []string

	for answer, n := range c.answers() {
		if n > before[answer] {
			more = append(more, fmt.Sprintf("%s ×%v", answer, n-before[answer]))
		}
	}

	slices.Sort(more)

	return strings.Join(more, ", ")
}
