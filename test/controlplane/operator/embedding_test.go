package operator_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"path/filepath"
	"testing"

	prom "github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

// clusterReconciler is the reconciler of the guide.
type clusterReconciler struct {
	client.Client

	kind    schema.GroupVersionKind // of the objects that represent runtimes
	watched *fleet.Fleet
	source  *controllerruntime.Source[reconcile.Request]
	// clusters returns the client of a runtime, and correct does the work there.
	clusters func(core.RuntimeID) client.Client
	correct  func(context.Context, client.Client, reconcile.Request) error
}

// setUp embeds the listener with its metrics, and gives the reconciler the source of its events.
func (k *clusterReconciler) setUp(mgr manager.Manager, addr string, secret keys.Paths, registry prom.Registerer) error {
	opts := watchermetrics.Options{Managers: []core.Manager{"my-operator"}}
	measured, err := watchermetrics.NewListener(registry, opts)
	if err != nil {
		return err
	}

	server := measured.KeyMaterial("server")
	log := controllerruntime.Logger(mgr.GetLogger())
	files, err := keys.NewFiles(secret, keys.FilesOptions{Hooks: server.FilesHooks, Logger: log})
	if err != nil {
		return err
	}
	inUse := files.Status().Material
	server.Expires(keys.Generation{NotBefore: inUse.NotBefore, NotAfter: inUse.NotAfter})

	cluster := &metav1.PartialObjectMetadata{}
	cluster.SetGroupVersionKind(k.kind)
	runtimes, err := controllerruntime.NewRuntimes(mgr.GetCache(), cluster, controllerruntime.ByName,
		controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}

	events, err := controllerruntime.AddListener(mgr, controllerruntime.ListenerConfig{
		Addr:     addr,
		Senders:  controllerruntime.MutualTLS(files),
		Verifier: listener.SANPinning(runtimes),
		Fleet:    k.watched,
		Runtimes: runtimes,
		Options:  listener.Options{Hooks: measured.Hooks},
	})
	if err != nil {
		return err
	}
	k.source, err = controllerruntime.SourceFor(events, "my-operator", controllerruntime.EnqueueByRuntime(runtimes),
		controllerruntime.SourceOptions{})
	if err != nil {
		return err
	}

	return errors.Join(watchermetrics.RegisterFleet(registry, k.watched, opts),
		builder.ControllerManagedBy(mgr).For(cluster).WatchesRawSource(k.source).Complete(k))
}

func (k *clusterReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	cluster := &metav1.PartialObjectMetadata{}
	cluster.SetGroupVersionKind(k.kind)
	if err := k.Get(ctx, request.NamespacedName, cluster); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // An object that is gone is not polled.
	}

	id := core.RuntimeID(cluster.Name)
	there := k.source.Client(request, id, k.clusters(id))
	if err := k.correct(ctx, there, request); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: k.watched.RequeueAfter(id)}, nil
}

// metricsServer serves the metrics and the status page with the certificate in folder.
func metricsServer(addr, folder string, watched *fleet.Fleet) metricsserver.Options {
	return metricsserver.Options{
		BindAddress: addr, SecureServing: true, CertDir: folder,
		FilterProvider: controllerruntime.BrowserFilter(filters.WithAuthenticationAndAuthorization),
		ExtraHandlers:  map[string]http.Handler{"/fleet": statuspage.FleetHandler(watched)},
	}
}

// testEmbedding runs the code in the guide: the object of a runtime is reconciled at the start, and again after an event.
func (l *lab) testEmbedding(t *testing.T) {
	rig.NoError(t, l.Client.Create(t.Context(), today.RuntimeKyma("skr-1", "skr-1")))
	var secret keys.Paths
	secret.CA, secret.Certificate, secret.Key = l.Volume(rig.Must(l.CA.Server("operator", testpki.Options{}))).Paths()
	watched := rig.Must(fleet.New(fleet.Options{}))
	registry := prom.NewRegistry()
	addr := rig.Address(rig.FreePort(t))
	page := rig.Address(rig.FreePort(t))
	mgr := l.newManager(metricsServer(page, filepath.Dir(secret.Certificate), watched))
	reconciled := make(chan string)
	k := &clusterReconciler{
		Client: mgr.GetClient(), kind: clusterKind(), watched: watched,
		clusters: func(core.RuntimeID) client.Client { return l.Client },
		correct: func(ctx context.Context, _ client.Client, request reconcile.Request) error {
			select {
			case reconciled <- request.String():
			case <-ctx.Done():
			}
			return nil
		},
	}
	rig.NoError(t, k.setUp(mgr, addr, secret, registry))
	rig.Run(t, "manager", mgr.Start)
	rig.Same(t, "reconciled at the start", "kcp-system/skr-1", <-reconciled)
	leaf := rig.Must(l.CA.Client("skr-1", testpki.Options{DNSNames: []string{"skr-1.kyma.example.com"}}))
	forwarder := rig.Must(httpmtls.NewForwarder(rig.Must(keys.NewMaterial(l.CA.PEM, leaf.CertPEM, leaf.KeyPEM)), addr, contract.V2,
		httpmtls.Options{Timeout: rig.Patience}))
	defer func() { _ = forwarder.Close() }() // It is idle.
	rig.Eventually(t, rig.Patience, "an event is accepted", func() bool {
		return forwarder.Forward(t.Context(), "my-operator", core.NewBatch(core.WatchEvent{
			Watched: types.NamespacedName{Namespace: "default", Name: "watched"}, WatchedGVK: clusterKind(),
		})) == nil
	})
	rig.Same(t, "reconciled after the event", "kcp-system/skr-1", <-reconciled)
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: l.CA.Pool()}}
	defer transport.CloseIdleConnections()
	request := rig.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+page+"/fleet", http.NoBody))
	answer := rig.Must((&http.Client{Transport: transport}).Do(request))
	_ = answer.Body.Close()
	rig.Same(t, "answer of the page without a token", http.StatusUnauthorized, answer.StatusCode)
	series := make(map[string]bool)
	for _, family := range rig.Must(registry.Gather()) {
		series[family.GetName()] = len(family.GetMetric()) > 0
	}
	for _, name := range []string{"listener_requests_total", "listener_certificate_expiry_timestamp_seconds"} {
		rig.Same(t, "there are series of "+name, true, series["runtime_watcher_"+name])
	}
}
