package controllerruntimetest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// kyma represents a runtime that has another name.
func kyma(name, runtime, domain string) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind())
	object.Namespace = "kcp-system"
	object.Name = name
	object.Labels = map[string]string{"runtime-id": runtime}
	object.Annotations = map[string]string{controllerruntime.DomainAnnotation: domain}
	return object
}

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "kcp-system", Name: name}
}

func newRuntimes(objects cache.Cache) *controllerruntime.Runtimes {
	runtimes, err := controllerruntime.NewRuntimes(objects, kyma("", "", ""), controllerruntime.ByLabel("runtime-id"),
		controllerruntime.RuntimesOptions{})
	if err != nil {
		panic(err)
	}
	return runtimes
}

func TestRuntimesFollowTheCache(t *testing.T) {
	objects := controllerruntimetest.NewCache(kyma("one", "skr-1", "one.example.com"))
	runtimes := newRuntimes(objects)
	check := func(want string) {
		t.Helper()
		names, err := runtimes.Objects(t.Context(), "skr-1")
		domain, refused := runtimes.Domain(t.Context(), "skr-1", &core.WatchEvent{})
		if got := fmt.Sprintf("%v %v %q %s", names, err, domain, core.ReasonOf(refused)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}

	check(`[kcp-system/one] <nil> "one.example.com" other`)
	objects.Set(kyma("one", "skr-1", "two.example.com"))
	check(`[kcp-system/one] <nil> "two.example.com" other`)
	objects.Set(kyma("other", "skr-2", "two.example.com"))
	check(`[kcp-system/one] <nil> "" domain_ambiguous`)
	objects.Delete(key("one"))
	objects.Delete(key("one"))
	check(`[] <nil> "" runtime_unknown`)
	objects.SetSynced(false)
	check(`[] not ready: the cache of Kyma is not synced "" not_ready`)
}

// An object represents the runtime of its label, and none is found while the cache is not synced.
func TestID(t *testing.T) {
	objects := controllerruntimetest.NewCache(kyma("one", "skr-1", ""), kyma("two", "", ""))
	runtimes := newRuntimes(objects)
	for name, want := range map[string]core.RuntimeID{"one": "skr-1", "two": "", "three": ""} {
		if got, err := runtimes.ID(t.Context(), key(name)); got != want || err != nil {
			t.Errorf("%s represents %q and %v, want %q", name, got, err, want)
		}
	}

	objects.SetSynced(false)
	if _, err := runtimes.ID(t.Context(), key("one")); !errors.Is(err, core.ErrNotReady) {
		t.Errorf("error %v, want not ready", err)
	}
}

// A list has the objects of its namespace, and a list of another type is an error.
func TestLists(t *testing.T) {
	objects := controllerruntimetest.NewCache(kyma("one", "skr-1", ""))
	for namespace, want := range map[string]int{"": 1, "kcp-system": 1, "default": 0} {
		list := &metav1.PartialObjectMetadataList{}
		err := objects.List(t.Context(), list, client.InNamespace(namespace))
		if len(list.Items) != want || err != nil {
			t.Errorf("namespace %q: %d and %v, want %d", namespace, len(list.Items), err, want)
		}
	}

	if err := objects.List(t.Context(), &unstructured.UnstructuredList{}); err == nil {
		t.Error("a list of other objects has no error")
	}
}

// TestManager runs a real controller manager without an API server.
func TestManager(t *testing.T) {
	objects := controllerruntimetest.NewCache(kyma("one", "skr-1", "one.example.com"))
	skip := true
	opts := manager.Options{
		NewCache:  func(*rest.Config, cache.Options) (cache.Cache, error) { return objects, nil },
		NewClient: func(*rest.Config, client.Options) (client.Client, error) { return nil, nil },
		Metrics:   metricsserver.Options{BindAddress: "0"},
		Logger:    logr.Discard(),
	}
	opts.Controller.SkipNameValidation = &skip
	mgr := must(manager.New(&rest.Config{Host: "127.0.0.1:1"}, opts))
	reconciled := make(chan string, 10)
	err := builder.ControllerManagedBy(mgr).For(kyma("", "", ""), builder.OnlyMetadata).
		Complete(reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
			reconciled <- r.Name
			return reconcile.Result{}, nil
		}))
	if err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- mgr.Start(ctx) }()
	first := <-reconciled
	objects.Set(kyma("two", "skr-2", ""))
	second := <-reconciled
	objects.Set(kyma("two", "skr-3", ""))
	third := <-reconciled
	objects.Delete(key("one"))
	fourth := <-reconciled
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	want := []string{"one", "two", "two", "one"}
	if got := []string{first, second, third, fourth}; !slices.Equal(got, want) {
		t.Errorf("reconciled %v, want %v", got, want)
	}
}

// A runtime is forgotten when its last object is deleted or gets another identity. The second
// runtime is represented by two objects.
func TestTheFleetForgetsWhatIsDeleted(t *testing.T) {
	watched := must(fleet.New(fleet.Options{}))
	objects := controllerruntimetest.NewCache(
		kyma("a", "skr-1", ""), kyma("b", "skr-2", ""), kyma("c", "skr-2", ""), kyma("d", "skr-3", ""))
	if err := newRuntimes(objects).Track(watched); err != nil {
		t.Fatal(err)
	}

	for _, id := range []core.RuntimeID{"skr-1", "skr-2", "skr-3"} {
		watched.Receiver().Observe(core.Peer{ID: id}, "kyma", core.Batch{Source: id}, nil)
	}

	objects.Delete(key("a"))
	objects.Delete(key("b"))
	objects.Set(kyma("d", "skr-4", ""))
	var left []core.RuntimeID
	watched.Range(func(s fleet.Status) bool {
		left = append(left, s.Runtime)
		return true
	})
	if !slices.Equal(left, []core.RuntimeID{"skr-2"}) {
		t.Errorf("the fleet knows %v, want the second runtime", left)
	}
}

// The operator of a dead runtime was restarted: nothing showed it any more.
func TestTheFleetExpectsTheRuntimesOfTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watched := must(fleet.New(fleet.Options{}))
		objects := controllerruntimetest.NewCache(kyma("a", "skr-1", ""), kyma("b", "", ""))
		runtimes := newRuntimes(objects)
		if err := runtimes.Track(nil, "kyma"); err == nil {
			t.Error("no error for managers without a fleet")
		}
		if err := runtimes.Track(watched, "Kyma"); err == nil {
			t.Error("no error for a wrong name")
		}
		if err := runtimes.Track(watched, "kyma"); err != nil {
			t.Fatal(err)
		}

		objects.Set(kyma("c", "skr-2", ""))
		objects.Set(kyma("c", "skr-3", ""))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		taken := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })
		go func() { ended <- watched.Receiver().Start(ctx, map[core.Manager]core.Handler{"kyma": taken}) }()
		time.Sleep(65 * time.Second)
		states := map[core.RuntimeID]fleet.State{}
		watched.Range(func(s fleet.Status) bool {
			states[s.Runtime] = s.State
			return true
		})
		want := map[core.RuntimeID]fleet.State{"skr-1": fleet.Stale, "skr-3": fleet.Stale}
		if !maps.Equal(states, want) {
			t.Errorf("the fleet knows %v, want %v", states, want)
		}

		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A misspelt kind fails as at an API server, and a reconciler can get an object.
func TestCacheKnowsItsKind(t *testing.T) {
	objects := controllerruntimetest.NewCache(kyma("a", "skr-1", ""))
	misspelt := kyma("", "", "")
	misspelt.Kind = "Kima"
	_, err := controllerruntime.NewRuntimes(objects, misspelt, controllerruntime.ByName,
		controllerruntime.RuntimesOptions{})
	if !meta.IsNoMatchError(err) {
		t.Errorf("error %v, want one for the kind", err)
	}

	found := &metav1.PartialObjectMetadata{}
	if err := objects.Get(t.Context(), key("a"), found); err != nil || found.Labels["runtime-id"] != "skr-1" {
		t.Errorf("%+v, %v, want the object", found, err)
	}
	if err := objects.Get(t.Context(), key("b"), found); !apierrors.IsNotFound(err) {
		t.Errorf("error %v, want none found", err)
	}
}

// The source of multicluster-runtime removes its handler, which can be compared with no other.
func TestCacheForgetsAHandler(t *testing.T) {
	objects := controllerruntimetest.NewCache(kyma("a", "skr-1", ""))
	added := map[string]int{}
	counted := func(by string) toolscache.ResourceEventHandler {
		return toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { added[by]++ }}
	}
	informer := must(objects.GetInformer(t.Context(), kyma("a", "", "")))
	removed := must(informer.AddEventHandlerWithResyncPeriod(counted("removed"), time.Minute))
	must(informer.AddEventHandler(counted("left")))
	if !removed.HasSynced() {
		t.Error("the handler is not in sync")
	}
	if err := informer.RemoveEventHandler(removed); err != nil {
		t.Fatal(err)
	}

	objects.Set(kyma("b", "skr-2", ""))
	if added["removed"] != 1 || added["left"] != 2 {
		t.Errorf("the handlers got %v", added)
	}
}
