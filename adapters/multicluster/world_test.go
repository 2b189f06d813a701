package multicluster_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mccontroller "sigs.k8s.io/multicluster-runtime/pkg/controller"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	mc "sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/adapters/multicluster"
	"github.com/runtime-watcher/runtime-watcher/core"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secret is that of a cluster, in a version of its own.
func secret(name, version string) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: version,
			Labels: map[string]string{"sigs.k8s.io/multicluster-runtime-kubeconfig": "true"},
		},
	}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
	}
}

// newManager returns a controller manager without API server. Its cache has metadata of Secrets.
func newManager(secrets cache.Cache) manager.Manager {
	return must(manager.New(&rest.Config{Host: "127.0.0.1:1"}, manager.Options{
		Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
		NewCache:   func(*rest.Config, cache.Options) (cache.Cache, error) { return secrets, nil },
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			mapper := meta.NewDefaultRESTMapper(nil)
			mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
			return mapper, nil
		},
		NewClient: func(*rest.Config, client.Options) (client.Client, error) {
			return nil, nil //nolint:nilnil // Nothing uses it.
		},
	}))
}

// world is an operator of ConfigMaps in clusters.
type world struct {
	t       *testing.T
	secrets *controllerruntimetest.Cache
	mgr     mcmanager.Manager
	source  *controllerruntime.Source[mcreconcile.Request]
	// reconciled has the requests for objects, after the object was read.
	reconciled chan mcreconcile.Request
	// known has the objects that were awaited. A resync may reconcile one of them again.
	known map[string]bool
	// enqueued is the number of requests of the newest event.
	enqueued int
}

// start runs an operator until the test ends. connect gets the metadata of a Secret.
func start(t *testing.T, connect func(secret client.Object) (client.Client, error), secrets ...client.Object) *world {
	t.Helper()
	w := &world{t: t, secrets: controllerruntimetest.NewCache(secrets...), reconciled: make(chan mcreconcile.Request), known: make(map[string]bool)}
	provider := multicluster.NewProvider(
		func(_ context.Context, secret client.Object) (client.Client, error) { return connect(secret) },
		multicluster.ProviderOptions{})
	w.mgr = must(mcmanager.WithMultiCluster(newManager(w.secrets), provider))
	w.source = controllerruntime.NewSource(multicluster.Enqueue, controllerruntime.SourceOptions{
		Handled: func(_ core.Delivery, requests int, _ error) { w.enqueued = requests },
	})
	ctx, cancel := context.WithCancel(t.Context())
	check(t, provider.SetupWithManager(ctx, w.mgr))
	controller := mcbuilder.ControllerManagedBy(w.mgr).Named("configmaps").
		WithOptions(mccontroller.Options{SkipNameValidation: new(true)})
	check(t, multicluster.Complete(w.mgr, controller, w.source,
		corev1.SchemeGroupVersion.WithKind("ConfigMap"), mcreconcile.Func(w.reconcile), client.InNamespace("default")))
	ended := make(chan error, 1)
	go func() { ended <- w.mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		for {
			select {
			case <-w.reconciled:
			case err := <-ended:
				check(t, err)
				return
			}
		}
	})
	return w
}

func (w *world) reconcile(ctx context.Context, r mcreconcile.Request) (reconcile.Result, error) {
	cl, err := w.mgr.GetCluster(ctx, r.ClusterName)
	if err != nil {
		return reconcile.Result{}, err
	}
	err = cl.GetClient().Get(ctx, r.NamespacedName, &corev1.ConfigMap{})
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	w.reconciled <- r
	return reconcile.Result{}, nil
}

// await waits until these objects, "cluster/name", are reconciled. It fails for an object that was
// never awaited.
func (w *world) await(objects ...string) {
	w.t.Helper()
	wanted := make(map[string]bool)
	for _, object := range objects {
		wanted[object], w.known[object] = true, true
	}
	for len(wanted) > 0 {
		select {
		case r := <-w.reconciled:
			name := string(r.ClusterName) + "/" + r.Name
			if !w.known[name] {
				w.t.Fatalf("%s was reconciled, want %v", name, wanted)
			}
			delete(wanted, name)
		case <-time.After(3 * time.Minute):
			w.t.Fatalf("%v were not reconciled", wanted)
		}
	}
}

// event hands over the change of an object, after the controller has started.
func (w *world) event(cluster, name string, base int64) error {
	w.t.Helper()
	return w.source.Handle(w.t.Context(), core.Delivery{Runtime: core.RuntimeID(cluster), Event: core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: name},
		WatchedGVK: corev1.SchemeGroupVersion.WithKind("ConfigMap"), UID: types.UID(name), Base: base,
	}})
}

func (w *world) engaged(cluster string) bool {
	_, err := w.mgr.GetProvider().Get(w.t.Context(), mc.ClusterName(cluster))
	return err == nil
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick, deadline := time.NewTicker(time.Millisecond), time.After(3*time.Minute)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after three minutes still not true: %s", what)
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var errRefused = errors.New("refused")
