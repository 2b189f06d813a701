package controllerruntime_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
)

func owner(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "kcp-system", Name: name}
}

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

// A listener component refuses it. Without events, nothing else would show it.
func TestNoRuntimesMapNothing(t *testing.T) {
	t.Parallel()
	if controllerruntime.EnqueueByRuntime(nil) != nil {
		t.Error("have a map function without runtimes, which panics at each event")
	}
}

// A cache that is not synced would block the sender, and one that has stopped is outdated.
func TestRuntimesNotReady(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*fakeCache){
		"not synced": func(f *fakeCache) { f.cold.Store(true) },
		"stopped":    func(f *fakeCache) { f.stopped.Store(true) },
		"broken":     func(f *fakeCache) { f.broken = errFake }, // Only a list can fail.
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFakeCache(t, kyma("skr-1", domain("skr-1.example.com"), nil))
			fake.namespaces = name == "broken"
			runtimes := newRuntimes(t, fake, controllerruntime.ByName)
			set(fake)
			_, errObjects := runtimes.Objects(t.Context(), "skr-1")
			_, errDomain := runtimes.Domain(t.Context(), "skr-1", &core.WatchEvent{})
			_, errMap := controllerruntime.EnqueueByRuntime(runtimes)(t.Context(), core.Delivery{Runtime: "skr-1"})
			for _, err := range []error{errObjects, errDomain, errMap} {
				if !errors.Is(err, core.ErrNotReady) || errors.Is(err, core.ErrForbidden) {
					t.Errorf("have %v, want not ready", err)
				}
				if asked := errors.Is(err, errFake); asked != (name == "broken") {
					t.Errorf("have %v, want the cache to be asked: %v", err, name == "broken")
				}
			}
		})
	}
}

func TestNewRuntimesRefuses(t *testing.T) {
	t.Parallel()
	byName := controllerruntime.ByName
	unknown, known, namespaces := newFakeCache(t), newFakeCache(t), newFakeCache(t)
	unknown.unknown, namespaces.namespaces = errFake, true
	newRuntimes(t, known, controllerruntime.ByName)
	newRuntimes(t, namespaces, controllerruntime.ByName)
	for want, tc := range map[string]struct {
		objects  cache.Cache
		kind     schema.GroupVersionKind
		identify func(metav1.Object) core.RuntimeID
	}{
		"want a cache":                                         {nil, kymaKind(), byName},
		"a kind with version":                                  {newFakeCache(t), schema.GroupVersionKind{Kind: "Kyma"}, byName},
		"an identify function":                                 {newFakeCache(t), kymaKind(), nil},
		"watch the runtimes of kind":                           {unknown, kymaKind(), byName},
		"index the runtimes of kind":                           {known, kymaKind(), byName},
		`index the runtimes of kind "operator.kyma-project.io`: {namespaces, kymaKind(), byName},
	} {
		_, err := controllerruntime.NewRuntimes(t.Context(), tc.objects, tc.kind, tc.identify, controllerruntime.RuntimesOptions{})
		if err == nil || !strings.Contains(err.Error(), want) {
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
