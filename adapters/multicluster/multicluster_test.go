package multicluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
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
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// clients returns a fake client for each cluster.
func clients(objects map[string][]client.Object) func(client.Object) (client.Client, error) {
	all := make(map[string]client.Client)
	for cluster, objects := range objects {
		all[cluster] = fake.NewClientBuilder().WithObjects(objects...).Build()
	}

	return func(secret client.Object) (client.Client, error) {
		if all[secret.GetName()] == nil {
			return nil, errRefused
		}
		return all[secret.GetName()], nil
	}
}

func TestClustersAreReconciled(t *testing.T) {
	unlabelled := secret("c", "1")
	unlabelled.Labels = nil
	elsewhere := secret("d", "1")
	elsewhere.Namespace = "elsewhere"
	foreign := configMap("foreign")
	foreign.Namespace = "elsewhere"
	w := start(t, clients(map[string][]client.Object{
		"a": {configMap("x"), configMap("y"), foreign}, "b": {configMap("x")}, "c": {configMap("x")}, "d": {configMap("x")},
	}), secret("a", "1"), secret("b", "1"), unlabelled, elsewhere)
	w.await("a/x", "a/y", "b/x")
	check(t, w.event("b", "x", 1))
	w.await("b/x")
	// A deleted object is reconciled, too.
	check(t, w.event("b", "gone", 1))
	w.await("b/gone")
	// A resync has all objects.
	check(t, w.source.Handle(t.Context(), core.Delivery{Runtime: "a", Event: core.WatchEvent{Resync: true}}))
	w.await("a/x", "a/y")
	// Without a Secret that is labelled, an event is acknowledged, and no reconcile begins.
	check(t, w.event("c", "x", 1))
	check(t, w.event("d", "x", 1))
	check(t, w.event("a", "y", 1))
	w.await("a/y")
}

func TestASecretEngagesItsCluster(t *testing.T) {
	w := start(t, clients(map[string][]client.Object{"a": {configMap("x")}}), secret("a", "1"))
	w.await("a/x")
	replaced := secret("a", "2")
	replaced.UID = "another"
	w.secrets.Set(replaced)
	w.await("a/x")
	unlabelled := secret("a", "3")
	unlabelled.Labels = nil
	w.secrets.Set(unlabelled)
	eventually(t, "the cluster is not engaged any more", func() bool { return !w.engaged("a") })

	_, err := w.mgr.GetCluster(t.Context(), "a")
	if !errors.Is(err, mc.ErrClusterNotFound) {
		t.Errorf("error %v, want that the cluster is not found", err)
	}

	w.secrets.Set(secret("a", "4"))
	w.await("a/x")
	w.secrets.Delete(client.ObjectKeyFromObject(secret("a", "4")))
	eventually(t, "the cluster is not engaged any more", func() bool { return !w.engaged("a") })
}

// A cluster that cannot be reached is retried, and keeps no other waiting.
func TestAClusterThatRefuses(t *testing.T) {
	refusals := make(chan struct{}, 100)
	first := true
	reached := clients(map[string][]client.Object{"a": {configMap("x")}, "b": {configMap("x")}})
	w := start(t, func(secret client.Object) (client.Client, error) {
		if secret.GetName() == "a" && first {
			first = false // One worker reconciles.
			refusals <- struct{}{}
			return nil, errRefused
		}
		return reached(secret)
	}, secret("a", "1"), secret("b", "1"))

	w.await("a/x", "b/x")
	if len(refusals) != 1 {
		t.Errorf("%d refusals, want 1", len(refusals))
	}
}

// A resend is not reconciled, because the reconcile before has read a newer version.
func TestResendsAreAcknowledged(t *testing.T) {
	w := start(t, clients(map[string][]client.Object{"a": {configMap("x")}}), secret("a", "1"))
	w.await("a/x")
	// The fake client stores the object in version 999. A reconcile that began before the event
	// does not count.
	eventually(t, "an event that a reconcile has read makes no request", func() bool {
		check(t, w.event("a", "x", 1))
		if w.enqueued > 0 {
			w.await("a/x")
		}
		return w.enqueued == 0
	})

	check(t, w.event("a", "x", 2000))
	if w.enqueued != 1 {
		t.Errorf("an event of a later write makes %d requests, want 1", w.enqueued)
	}
}

func TestAListIsPaged(t *testing.T) {
	var pages []string
	paged := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			options := (&client.ListOptions{}).ApplyOptions(opts)
			pages = append(pages, fmt.Sprintf("%d after %q in %s", options.Limit, options.Continue, options.Namespace))
			name := strings.Repeat("x", len(pages))
			list.SetContinue(map[int]string{1: "more"}[len(pages)])
			list.(*metav1.PartialObjectMetadataList).Items = []metav1.PartialObjectMetadata{{ //nolint:forcetypeassert // It fails the test.
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			}}

			return nil
		},
	}).Build()

	w := start(t, func(client.Object) (client.Client, error) { return paged, nil }, secret("a", "1"))
	w.await("a/x", "a/xx")

	if want := `[250 after "" in default 250 after "more" in default]`; fmt.Sprint(pages) != want {
		t.Errorf("pages %v, want %s", pages, want)
	}
}

func TestAClusterHasNoCache(t *testing.T) {
	w := start(t, clients(map[string][]client.Object{"a": {configMap("x")}}), secret("a", "1"))
	w.await("a/x")
	a := must(w.mgr.GetCluster(t.Context(), "a"))
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	_, informer := a.GetCache().GetInformer(t.Context(), &corev1.ConfigMap{})
	_, byKind := a.GetCache().GetInformerForKind(t.Context(), kind)
	outgoing := must(http.NewRequestWithContext(t.Context(), http.MethodGet, "https://cluster.invalid", http.NoBody))
	_, request := a.GetHTTPClient().Transport.RoundTrip(outgoing)
	_, configured := must(rest.TransportFor(a.GetConfig())).RoundTrip(outgoing)
	for name, err := range map[string]error{
		"informer": informer, "informer of a kind": byKind, "request": request, "configuration": configured,
		"index":              w.mgr.GetFieldIndexer().IndexField(t.Context(), &corev1.ConfigMap{}, "data", nil),
		"index of a cluster": a.GetFieldIndexer().IndexField(t.Context(), &corev1.ConfigMap{}, "data", nil),
	} {
		if err == nil || !strings.Contains(err.Error(), "cluster has no") {
			t.Errorf("%s: error %v, want that the cluster has none", name, err)
		}
	}

	if err := a.GetCache().Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "x"}, &corev1.ConfigMap{}); err != nil {
		t.Errorf("a read of the cache: %v, want a request", err)
	}
	if !a.GetCache().WaitForCacheSync(t.Context()) || a.GetScheme() != scheme.Scheme {
		t.Error("want a cache that is in sync, and the scheme of the local manager")
	}
}

// A missing part of the provider or of the objects is an error of the set-up.
func TestMissingPartsAreRefused(t *testing.T) {
	provider := multicluster.NewProvider(nil, multicluster.ProviderOptions{})
	mgr := must(mcmanager.WithMultiCluster(newManager(controllerruntimetest.NewCache()), provider))
	if err := provider.SetupWithManager(t.Context(), mgr); err == nil {
		t.Error("no error, want one about connect")
	}

	source := controllerruntime.NewSource(multicluster.Enqueue, controllerruntime.SourceOptions{})
	whole := multicluster.Objects{
		Source: source, Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		Reconciler: mcreconcile.Func(func(context.Context, mcreconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, nil
		}),
	}

	for want, take := range map[string]func(o *multicluster.Objects){
		"Reconciler": func(o *multicluster.Objects) { o.Reconciler = nil },
		"Source":     func(o *multicluster.Objects) { o.Source = nil },
		"Kind":       func(o *multicluster.Objects) { o.Kind = schema.GroupVersionKind{} },
		"Remembered": func(o *multicluster.Objects) { o.Remembered = -1 },
		"MostListed": func(o *multicluster.Objects) { o.MostListed = -1 },
	} {
		objects := whole
		take(&objects)
		err := multicluster.Complete(mgr, mcbuilder.ControllerManagedBy(mgr), objects)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error about %s", err, want)
		}
	}

	if err := multicluster.Complete(mgr, nil, whole); err == nil || !strings.Contains(err.Error(), "builder") {
		t.Errorf("got %v, want an error about the builder", err)
	}
}

// requests notes requests, and fails them.
type requests []string

func (r *requests) RoundTrip(request *http.Request) (*http.Response, error) {
	note := request.Method + " " + strings.TrimPrefix(request.URL.Path, "/api/v1/namespaces/default/configmaps/")
	if request.Method == http.MethodPatch {
		note += " " + strings.TrimPrefix(request.Header.Get("Content-Type"), "application/")
	}

	*r = append(*r, note)
	return nil, errRefused
}

// use makes each call of a client once.
func use(ctx context.Context, c client.Client) []error {
	o := configMap("x")
	patch := client.RawPatch(types.MergePatchType, []byte("{}"))
	list := &corev1.ConfigMapList{}
	sub := c.SubResource("scale")
	applied := applycorev1.ConfigMap("x", "default")
	return []error{
		c.Get(ctx, client.ObjectKeyFromObject(o), o), c.List(ctx, list), c.Apply(ctx, applied), c.Create(ctx, o),
		c.Delete(ctx, o), c.Update(ctx, o), c.Patch(ctx, o, patch), c.DeleteAllOf(ctx, o), c.Status().Update(ctx, o),
		sub.Get(ctx, o, o), sub.Create(ctx, o, o), sub.Update(ctx, o), sub.Patch(ctx, o, patch), sub.Apply(ctx, applied),
	}
}

func TestEachCallConnects(t *testing.T) {
	const want = "[GET x GET /api/v1/configmaps PATCH x apply-patch+yaml POST /api/v1/namespaces/default/configmaps " +
		"DELETE x PUT x PATCH x merge-patch+json DELETE /api/v1/configmaps PUT x/status " +
		"GET x/scale POST x/scale PUT x/scale PATCH x/scale merge-patch+json PATCH x/scale apply-patch+yaml]"
	connect := clients(map[string][]client.Object{"a": {configMap("x")}})
	w := start(t, func(secret client.Object) (client.Client, error) { return connect(secret) }, secret("a", "1"))
	w.await("a/x")
	a := must(w.mgr.GetCluster(t.Context(), "a")).GetClient()
	var made requests
	toNowhere := &rest.Config{Host: "https://127.0.0.1:1", Transport: &made}
	connect = func(client.Object) (client.Client, error) {
		return client.New(toNowhere, client.Options{Scheme: a.Scheme(), Mapper: a.RESTMapper()})
	}

	for _, err := range use(t.Context(), a) {
		if !errors.Is(err, errRefused) {
			t.Errorf("error %v, want that of the connected client", err)
		}
	}

	if fmt.Sprint(made) != want {
		t.Errorf("requests %v, want %s", made, want)
	}

	errNoWay := errors.New("no way")
	connect = func(client.Object) (client.Client, error) { return nil, errNoWay }

	for i, err := range use(t.Context(), a) {
		if !errors.Is(err, errNoWay) {
			t.Errorf("call %d: error %v, want that of connect", i, err)
		}
	}

	kind, err := a.GroupVersionKindFor(&corev1.ConfigMap{})
	namespaced, mapped := a.IsObjectNamespaced(&corev1.ConfigMap{})
	if err != nil || mapped != nil || kind.Kind != "ConfigMap" || !namespaced {
		t.Errorf("kind %v, namespaced %v, errors %v and %v", kind, namespaced, err, mapped)
	}
}

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
		Handled: func(h hook.Handled) { w.enqueued = h.Requests },
	})
	ctx, cancel := context.WithCancel(t.Context())
	check(t, provider.SetupWithManager(ctx, w.mgr))
	controller := mcbuilder.ControllerManagedBy(w.mgr).Named("configmaps").
		WithOptions(mccontroller.Options{SkipNameValidation: new(true)})
	check(t, multicluster.Complete(w.mgr, controller, multicluster.Objects{
		Source: w.source, Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Reconciler: mcreconcile.Func(w.reconcile),
		Select: []client.ListOption{client.InNamespace("default")},
	}))
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

	tick := time.NewTicker(time.Millisecond)
	deadline := time.After(3 * time.Minute)
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
