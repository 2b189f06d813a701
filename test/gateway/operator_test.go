package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

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
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const (
	component = "kyma"
	// gatewayName is the SAN of the gateway's certificate.
	gatewayName = "gateway.istio-system.svc"
	// gatewayAddress is the source address of the gateway that is known by its address. Attackers
	// have 127.0.0.1.
	gatewayAddress = "127.0.0.2"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

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

// operator is one manager. Three listeners feed its controller. SAN pinning reads its cache, which
// watches a real API server.
type operator struct {
	plane    *apiserver.ControlPlane
	mgr      manager.Manager
	queue    *countedQueue
	runtimes *controllerruntime.Runtimes
	source   *controllerruntime.Source[reconcile.Request]

	// native verifies in the handshake. The others believe a gateway, by its certificate or by its
	// address.
	native, proxyCertificate, proxyAddress *answers
}

// answers records the answers of one listener.
type answers struct {
	addr string

	mu  sync.Mutex
	all []counted
}

type counted struct {
	status int
	reason string
}

func (a *answers) answered(_ string, _ core.Manager, status int, reason string, _ time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, counted{status, reason})
}

func (a *answers) len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.all)
}

func (a *answers) last() counted {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[len(a.all)-1]
}

func startOperator(t *testing.T, ca authorities) *operator {
	t.Helper()
	o := &operator{plane: lab.SharedAPIServer(t, apiserver.Options{}), queue: &countedQueue{}}
	o.mgr = must(ctrl.NewManager(o.plane.Config, ctrl.Options{
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	}))
	ctx, stop := context.WithCancel(context.Background())
	o.runtimes = must(controllerruntime.NewRuntimes(ctx, o.mgr.GetCache(),
		corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{}))
	enqueue := controllerruntime.EnqueueOwnerOr(controllerruntime.EnqueueByRuntime(o.runtimes))
	o.source = controllerruntime.NewSource(enqueue,
		controllerruntime.SourceOptions{Elected: o.mgr.Elected()})
	o.listenAll(t, ca)
	reconciler := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result,
		error,
	) {
		return reconcile.Result{}, nil
	})
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

func (o *operator) listenAll(t *testing.T, ca authorities) {
	t.Helper()
	roots := poolOf(ca.runtimes.Pool())
	verified, asked := ca.serverTLS(), ca.serverTLS()
	verified.ClientAuth, verified.ClientCAs = tls.RequireAndVerifyClientCert, ca.runtimes.Pool()
	asked.ClientAuth = tls.RequestClientCert
	byCertificate := listener.ProxyCertificate(poolOf(ca.gateways.Pool()), gatewayName)
	byAddress := listener.ProxyAddresses(netip.MustParsePrefix(gatewayAddress + "/32"))
	o.native = o.listen(t, listener.FromTLS(listener.PeerOptions{}), verified)
	o.proxyCertificate = o.listen(t, listener.FromXFCC(byCertificate, roots, listener.PeerOptions{}), asked)
	o.proxyAddress = o.listen(t, listener.FromXFCC(byAddress, roots, listener.PeerOptions{}), nil)
}

// listen adds a listener to the manager.
func (o *operator) listen(t *testing.T, peers listener.Peers, serving *tls.Config) *answers {
	t.Helper()
	bound := must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	a := &answers{addr: bound.Addr().String()}
	const plenty = 1 << 20 // Another test is about shares.
	l := must(listener.New(peers, listener.SANPinning(o.runtimes), map[core.Manager]core.Handler{component: o.source},
		listener.Options{
			Listener: bound, TLS: serving, RuntimeRate: plenty, RuntimeBurst: plenty,
			Hooks: listener.Hooks{Answered: a.answered},
		}))
	if err := o.mgr.Add(l); err != nil {
		t.Fatal(err)
	}
	return a
}

func registered(name, domain string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: lab.Namespace,
		Annotations: map[string]string{controllerruntime.DomainAnnotation: domain},
	}}
}

// register creates the object of a runtime, and returns when the operator's cache has it. The test
// removes it.
func (o *operator) register(t *testing.T, name, domain string) {
	t.Helper()
	lab.AddRuntime(t, o.plane, name, domain)
	object := registered(name, domain)
	if err := o.plane.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal(err)
	}
	o.await(t, object, object.ResourceVersion)
}

// change registers another domain for a runtime.
func (o *operator) change(t *testing.T, name, domain string) {
	t.Helper()
	object := registered(name, domain)
	if err := o.plane.Client.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	o.await(t, object, object.ResourceVersion)
}

func (o *operator) remove(t *testing.T, name string) {
	t.Helper()
	object := registered(name, "")
	if err := o.plane.Client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	o.await(t, object, "")
}

// await waits until the cache of SAN pinning has that version of an object. "" means that the
// object is gone.
func (o *operator) await(t *testing.T, object *corev1.ConfigMap, version string) {
	t.Helper()
	lab.Eventually(t, patience, "the operator's cache knows of "+object.Name, func() bool {
		cached := &metav1.PartialObjectMetadata{}
		cached.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
		err := o.mgr.GetCache().Get(t.Context(), client.ObjectKeyFromObject(object), cached)
		return cached.ResourceVersion == version && (err == nil || version == "")
	})
}

// countedQueue records the requests that are added to the workqueue of the controller.
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

// Add implements the workqueue. The source calls no other method.
func (q *countedQueue) Add(r reconcile.Request) {
	q.mu.Lock()
	q.added = append(q.added, r.String())
	q.mu.Unlock()
	q.TypedRateLimitingInterface.Add(r)
}

// since returns the requests after the first n.
func (q *countedQueue) since(n int) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.added[n:])
}

func (q *countedQueue) len() int { return len(q.since(0)) }
