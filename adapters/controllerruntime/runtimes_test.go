package controllerruntime_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

func owner(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "kcp-system", Name: name}
}

// Each map function requests the objects of its rule, and an event without an object is no error.
func TestMapFuncs(t *testing.T) {
	t.Parallel()

	label := func(runtime string) map[string]string { return map[string]string{"runtime-id": runtime} }
	runtimes := newRuntimes(t, newFakeCache(t,
		kyma("one", nil, label("skr-1")), kyma("two", nil, label("skr-2")), kyma("three", nil, label("skr-2")),
		kyma("none", nil, nil),
	), controllerruntime.ByLabel("runtime-id"))
	byRuntime := controllerruntime.EnqueueByRuntime(runtimes)
	for name, tc := range map[string]struct {
		mapFunc controllerruntime.MapFunc[reconcile.Request]
		runtime core.RuntimeID
		owner   types.NamespacedName
		want    []string
		refuse  bool
	}{
		"owner":                       {controllerruntime.EnqueueOwner(nil), "skr-1", owner("two"), []string{"two"}, false},
		"no owner":                    {controllerruntime.EnqueueOwner(nil), "skr-1", types.NamespacedName{}, nil, true},
		"runtime":                     {byRuntime, "skr-1", types.NamespacedName{}, []string{"one"}, false},
		"runtime, whatever the owner": {byRuntime, "skr-1", owner("two"), []string{"one"}, false},
		"runtime with two objects":    {byRuntime, "skr-2", types.NamespacedName{}, []string{"three", "two"}, false},
		"runtime without object":      {byRuntime, "skr-3", types.NamespacedName{}, nil, false},
		"object without runtime":      {byRuntime, "", types.NamespacedName{}, nil, false},
		"owner or runtime, with owner": {
			controllerruntime.EnqueueOwner(byRuntime), "skr-1", owner("two"), []string{"two"}, false,
		},
		"owner or runtime, without": {
			controllerruntime.EnqueueOwner(byRuntime), "skr-1", types.NamespacedName{}, []string{"one"}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := core.Delivery{Runtime: tc.runtime, Event: core.WatchEvent{Owner: tc.owner}}
			requests, err := tc.mapFunc(t.Context(), d)
			if (err != nil) != tc.refuse {
				t.Errorf("have error %v, want one: %v", err, tc.refuse)
			}

			var got []string
			for _, request := range requests {
				if request.Namespace != "kcp-system" {
					t.Errorf("namespace %q, want kcp-system", request.Namespace)
				}
				got = append(got, request.Name)
			}

			slices.Sort(got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("requests (-want +have):\n%s", diff)
			}
		})
	}
}

// SourceFor refuses it. Without events, nothing else would show it.
func TestNoRuntimesMapNothing(t *testing.T) {
	t.Parallel()
	if controllerruntime.EnqueueByRuntime(nil) != nil {
		t.Error("have a map function without runtimes, which panics at each event")
	}
}

// none is a map function of controller-runtime without requests.
func none(context.Context, client.Object) []reconcile.Request { return nil }

// A cache that is not synced would block the sender, and one that has stopped is outdated.
func TestRuntimesNotReady(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*fakeCache){
		"not synced":                        func(f *fakeCache) { f.cold.Store(true) },
		"stopped":                           func(f *fakeCache) { f.stopped.Store(true) },
		"not synced, of several namespaces": func(f *fakeCache) { f.cold.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			fake := newFakeCache(t, kyma("skr-1", domain("skr-1.example.com"), nil))
			fake.namespaces = strings.Contains(name, "namespaces")
			runtimes := newRuntimes(t, fake, controllerruntime.ByName)
			set(fake)
			_, errObjects := runtimes.Objects(t.Context(), "skr-1")
			_, errDomain := runtimes.Domain(t.Context(), "skr-1", &core.WatchEvent{})
			_, errMap := controllerruntime.EnqueueByRuntime(runtimes)(t.Context(), core.Delivery{Runtime: "skr-1"})
			errRegistered := controllerruntime.Registered(runtimes).Verify(t.Context(), core.Peer{ID: "skr-1"}, &core.WatchEvent{})
			_, errFor := controllerruntime.EnqueueFor(runtimes, none)(t.Context(), core.Delivery{Runtime: "skr-1"})
			for _, err := range []error{errObjects, errDomain, errMap, errRegistered, errFor} {
				if !errors.Is(err, core.ErrNotReady) || errors.Is(err, core.ErrForbidden) {
					t.Errorf("have %v, want not ready", err)
				}
			}
		})
	}
}

// An argument that is missing or contradicts another one is an error, which names the argument.
func TestNewRuntimesRefuses(t *testing.T) {
	t.Parallel()

	byName := controllerruntime.ByName
	unknown := newFakeCache(t)
	known := newFakeCache(t)
	unknown.unknown = errFake
	newRuntimes(t, known, byName)
	kymas := kyma("", nil, nil)
	domainOf := func(client.Object) string { return "" }
	for want, tc := range map[string]struct {
		objects  cache.Cache
		object   client.Object
		identify func(client.Object) core.RuntimeID
		opts     controllerruntime.RuntimesOptions
	}{
		"kind Kyma: want a cache":         {nil, kymas, byName, controllerruntime.RuntimesOptions{}},
		"want an empty object":            {newFakeCache(t), nil, byName, controllerruntime.RuntimesOptions{}},
		"a kind with version":             {newFakeCache(t), &metav1.PartialObjectMetadata{}, byName, controllerruntime.RuntimesOptions{}},
		"an identify function":            {newFakeCache(t), &corev1.ConfigMap{}, nil, controllerruntime.RuntimesOptions{}},
		"kind ConfigMap: want a cache":    {nil, &corev1.ConfigMap{}, byName, controllerruntime.RuntimesOptions{}},
		"watch the runtimes of kind Kyma": {unknown, kymas, byName, controllerruntime.RuntimesOptions{}},
		"index the runtimes of kind Kyma": {known, kymas, byName, controllerruntime.RuntimesOptions{}},
		"Domain and DomainAnnotation are both": {
			newFakeCache(t), kymas, byName, controllerruntime.RuntimesOptions{Domain: domainOf, DomainAnnotation: "host"},
		},
	} {
		runtimes, err := controllerruntime.NewRuntimes(tc.objects, tc.object, tc.identify, tc.opts)
		if err == nil || !strings.Contains(err.Error(), want) || runtimes != nil {
			t.Errorf("have %v, want an error that says %q", err, want)
		}
	}
}

func BenchmarkEnqueueByRuntime(b *testing.B) {
	fake := newFakeCache(b)
	runtimes := newRuntimes(b, fake, controllerruntime.ByName)
	deliveries := make([]core.Delivery, 10_000)
	for i := range deliveries {
		deliveries[i].Runtime = core.RuntimeID(fmt.Sprintf("skr-%d", i))
		check(b, fake.store.Add(kyma(string(deliveries[i].Runtime), domain(fmt.Sprintf("%d.example.com", i)), nil)))
	}

	mapFunc := controllerruntime.EnqueueByRuntime(runtimes)
	b.Run("map", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			if requests, err := mapFunc(b.Context(), deliveries[i%len(deliveries)]); err != nil || len(requests) != 1 {
				b.Fatal(requests, err)
			}
		}
	})
	b.Run("domain", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			d := &deliveries[i%len(deliveries)]
			if _, err := runtimes.Domain(b.Context(), d.Runtime, &d.Event); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// pinned returns the objects of a control plane with many faults. By label, "skr-N" is the runtime
// of kyma "N".
func pinned() []*metav1.PartialObjectMetadata {
	label := func(runtime string) map[string]string { return map[string]string{"runtime-id": runtime} }
	return []*metav1.PartialObjectMetadata{
		kyma("good", domain("good.example.com"), label("skr-good")),
		kyma("other", domain("other.example.com"), label("skr-other")),
		kyma("nameless", domain("nameless.example.com"), nil),
		kyma("upper", domain("Upper.Example.com."), label("skr-upper")),
		kyma("missing", nil, label("skr-missing")),
		kyma("empty", domain(""), label("skr-empty")),
		kyma("blank", domain(" "), label("skr-blank")),
		kyma("dot", domain("."), label("skr-dot")),
		kyma("wildcard", domain("*.example.com"), label("skr-wildcard")),
		kyma("twin-1", domain("twin.example.com"), label("skr-twin-1")),
		kyma("twin-2", domain("TWIN.example.com."), label("skr-twin-2")),
		kyma("address-1", domain("192.0.2.1"), label("skr-address-1")),
		kyma("address-2", domain("::ffff:192.0.2.1"), label("skr-address-2")),
		kyma("double-1", domain("double-1.example.com"), label("skr-double")),
		kyma("double-2", domain("double-2.example.com"), label("skr-double")),
	}
}

// The domain of an owner or of a runtime is found, and each doubt about it is refused with its
// reason.
func TestDomain(t *testing.T) {
	t.Parallel()
	for name, namespaces := range map[string]bool{"one cache": false, "a cache of several namespaces": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFakeCache(t, pinned()...)
			fake.namespaces = namespaces
			testDomain(t, newRuntimes(t, fake, controllerruntime.ByLabel("runtime-id")))
		})
	}
}

func testDomain(t *testing.T, runtimes *controllerruntime.Runtimes) {
	t.Helper()

	none := types.NamespacedName{}
	for name, tc := range map[string]struct {
		runtime core.RuntimeID
		owner   types.NamespacedName
		domain  string
		reason  string
	}{
		"runtime":                 {"skr-good", none, "good.example.com", ""},
		"owner":                   {"skr-good", owner("good"), "good.example.com", ""},
		"as written":              {"skr-upper", none, "Upper.Example.com.", ""},
		"owner without a runtime": {"some common name", owner("nameless"), "nameless.example.com", ""},
		"owner without runtime, of a known sender": {"skr-good", owner("nameless"), "", "owner_mismatch"},
		"owner of another runtime":                 {"skr-good", owner("other"), "", "owner_mismatch"},
		"owner of another, by a stranger":          {"skr-new", owner("good"), "", "owner_mismatch"},
		"no such runtime":                          {"skr-new", none, "", "runtime_unknown"},
		"empty runtime":                            {"", none, "", "runtime_unknown"},
		"no such owner":                            {"skr-good", owner("gone"), "", reasons.OwnerMissing},
		"owner in another namespace": {
			"skr-good", types.NamespacedName{Namespace: "default", Name: "good"}, "", reasons.OwnerMissing,
		},
		"owner without namespace":            {"skr-good", types.NamespacedName{Name: "good"}, "", reasons.OwnerMissing},
		"owner without name":                 {"skr-good", types.NamespacedName{Namespace: "kcp-system"}, "", reasons.OwnerMissing},
		"missing":                            {"skr-missing", none, "", reasons.DomainMissing},
		"missing, by owner":                  {"skr-missing", owner("missing"), "", reasons.DomainMissing},
		"empty":                              {"skr-empty", none, "", reasons.DomainEmpty},
		"blank":                              {"skr-blank", none, "", reasons.DomainEmpty},
		"the root of DNS":                    {"skr-dot", none, "", reasons.DomainEmpty},
		"wildcard":                           {"skr-wildcard", owner("wildcard"), "", reasons.DomainWildcard},
		"registered twice":                   {"skr-twin-1", none, "", reasons.DomainAmbiguous},
		"registered twice, in other letters": {"skr-twin-2", owner("twin-2"), "", reasons.DomainAmbiguous},
		"an address registered twice":        {"skr-address-1", none, "", reasons.DomainAmbiguous},
		"two domains":                        {"skr-double", none, "", reasons.DomainAmbiguous},
		"two domains, one named":             {"skr-double", owner("double-2"), "double-2.example.com", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := runtimes.Domain(t.Context(), tc.runtime, &core.WatchEvent{Owner: tc.owner})
			if got != tc.domain {
				t.Errorf("have domain %q, want %q", got, tc.domain)
			}
			if tc.reason == "" {
				if err != nil {
					t.Errorf("have %v, want no error", err)
				}
				return
			}
			if !errors.Is(err, core.ErrForbidden) || string(core.ReasonOf(err)) != tc.reason {
				t.Errorf("have %v (%s), want it forbidden (%s)", err, core.ReasonOf(err), tc.reason)
			}
		})
	}
}

func TestDomainAnnotationOption(t *testing.T) {
	t.Parallel()
	fake := newFakeCache(t, kyma("skr-1", map[string]string{"host": "skr-1.example.com"}, nil))
	runtimes, err := controllerruntime.NewRuntimes(fake, kyma("", nil, nil), controllerruntime.ByName,
		controllerruntime.RuntimesOptions{DomainAnnotation: "host"})
	check(t, err)
	if got, err := runtimes.Domain(t.Context(), "skr-1", &core.WatchEvent{}); err != nil || got != "skr-1.example.com" {
		t.Errorf("have %q, %v, want the domain of the annotation", got, err)
	}
}

func kymaKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// fakeCache is a cache of one kind whose informers can fail. It waits for nothing.
type fakeCache struct {
	*controllerruntimetest.Cache

	store         toolscache.Indexer // of the informer of one namespace
	cold, stopped atomic.Bool
	unknown       error // of GetInformer
	namespaces    bool  // several of them, so that the informer shows no indexer
}

// fakeInformer is the informer of a cache of several namespaces.
type fakeInformer struct {
	cache.Informer

	*fakeCache
}

func (i fakeInformer) HasSynced() bool { return !i.cold.Load() }
func (i fakeInformer) IsStopped() bool { return i.stopped.Load() }

func (i fakeInformer) AddEventHandler(
	handler toolscache.ResourceEventHandler,
) (toolscache.ResourceEventHandlerRegistration, error) {
	registration, err := i.Informer.AddEventHandler(handler)
	return fakeRegistration{registration, i}, err
}

// fakeRegistration is in sync when the informer is.
type fakeRegistration struct {
	toolscache.ResourceEventHandlerRegistration

	of fakeInformer
}

func (r fakeRegistration) HasSynced() bool { return r.of.HasSynced() }

// indexedInformer is the informer of a cache of one namespace, or of all.
type indexedInformer struct{ fakeInformer }

func (i indexedInformer) GetIndexer() toolscache.Indexer { return i.store }

func (i indexedInformer) AddIndexers(indexers toolscache.Indexers) error {
	return i.store.AddIndexers(indexers)
}

var errFake = errors.New("fake failure")

func newFakeCache(t testing.TB, objects ...*metav1.PartialObjectMetadata) *fakeCache {
	t.Helper()
	fake := &fakeCache{
		Cache: controllerruntimetest.NewCache(), store: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{}),
	}
	for _, object := range objects {
		fake.Set(object)
		check(t, fake.store.Add(object))
	}

	return fake
}

func (f *fakeCache) GetInformer(
	ctx context.Context, object client.Object, opts ...cache.InformerGetOption,
) (cache.Informer, error) {
	options := cache.InformerGetOptions{}
	for _, set := range opts {
		set(&options)
	}

	if options.BlockUntilSynced == nil || *options.BlockUntilSynced {
		return nil, fmt.Errorf("%w: waits for the cache", errFake)
	}
	if f.unknown != nil {
		return nil, f.unknown
	}

	informer, err := f.Cache.GetInformer(ctx, object)
	if f.namespaces {
		return fakeInformer{informer, f}, err
	}

	return indexedInformer{fakeInformer{informer, f}}, err
}

// kyma returns an object with a name, and with annotations and labels as "key=value".
func kyma(name string, annotations, labels map[string]string) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kymaKind())
	object.Namespace = "kcp-system"
	object.Name = name
	object.Annotations = annotations
	object.Labels = labels
	return object
}

func domain(value string) map[string]string {
	return map[string]string{controllerruntime.DomainAnnotation: value}
}

func newRuntimes(t testing.TB, fake *fakeCache, identify func(client.Object) core.RuntimeID) *controllerruntime.Runtimes {
	t.Helper()
	runtimes, err := controllerruntime.NewRuntimes(fake, kyma("", nil, nil), identify, controllerruntime.RuntimesOptions{})
	check(t, err)
	return runtimes
}
