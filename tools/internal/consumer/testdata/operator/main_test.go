// Package operator_test is an operator that others build and test: outside of the repository, from released modules. It
// polls a runtime seldom while events arrive from it.
package operator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/mock/gomock"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coremock"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/fleet/fleettest"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/listener/listenertest"
)

const myOperator core.Manager = "my-operator"

// world is the operator without a cluster: the object of runtime-1 is kyma-1.
type world struct {
	objects  *controllerruntimetest.Cache
	runtimes *controllerruntime.Runtimes
	fleet    *fleet.Fleet
}

func newObjects() *controllerruntimetest.Cache {
	kyma := &metav1.PartialObjectMetadata{}
	kyma.Name, kyma.Namespace = "kyma-1", "kcp-system"
	kyma.Labels = map[string]string{"runtime-id": "runtime-1"}
	kyma.Annotations = map[string]string{controllerruntime.DomainAnnotation: "one.example.com"}
	return controllerruntimetest.NewCache(kyma)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{objects: newObjects()}
	w.runtimes = must(controllerruntime.NewRuntimes(w.objects, empty(), controllerruntime.ByLabel("runtime-id"),
		controllerruntime.RuntimesOptions{}))
	w.fleet = must(fleet.New(fleet.Options{Random: func() float64 { return 0.5 }}))
	return w
}

// The operator polls by freshness, of the runtime that the object represents.
func TestPolling(t *testing.T) {
	w := newWorld(t)
	r := &reconciler{runtimes: w.runtimes, fleet: w.fleet, look: lookAt}
	poll := func(want time.Duration) {
		t.Helper()
		got, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "kcp-system", Name: "kyma-1"}})
		if got.RequeueAfter != want || err != nil {
			t.Errorf("again after %v and %v, want %v", got.RequeueAfter, err, want)
		}
	}
	poll(time.Minute)
	fleettest.Set(w.fleet, "runtime-1", myOperator, fleet.Condition{State: fleet.Fresh})
	poll(30 * time.Minute)
	fleettest.Set(w.fleet, "runtime-1", myOperator, fleet.Condition{State: fleet.Degraded, Reason: "canary_lost"})
	poll(time.Minute)
	fleettest.Set(w.fleet, "runtime-1", myOperator, fleet.Condition{State: fleet.Unproved})
	poll(5 * time.Minute)
	fleettest.Set(w.fleet, "runtime-1", myOperator, fleet.Condition{State: fleet.Stale})
	poll(time.Minute)
}

// An event passes the verifier and the source of production.
func TestOnlyTheRuntimeItselfTriggersIt(t *testing.T) {
	w := newWorld(t)
	enqueue := controllerruntime.EnqueueByRuntime(w.runtimes)
	var requests []reconcile.Request
	handler := core.HandlerFunc(func(ctx context.Context, d core.Delivery) error {
		made, err := enqueue(ctx, d)
		requests = append(requests, made...)
		return err
	})
	l := must(listener.New(listenertest.Peers(), listener.SANPinning(w.runtimes),
		map[core.Manager]core.Handler{myOperator: handler}, listener.Options{Fleet: w.fleet}))
	batch := core.NewBatch(coretest.Changed("ConfigMap", "default", "demo"))
	runtime := core.Peer{ID: "runtime-1", DNSNames: []string{"one.example.com"}}
	if err := listenertest.Forwarder(l, runtime).Forward(t.Context(), myOperator, batch); err != nil {
		t.Error(err)
	}
	thief := core.Peer{ID: "runtime-1", DNSNames: []string{"two.example.com"}}
	if err := listenertest.Forwarder(l, thief).Forward(t.Context(), myOperator, batch); err == nil {
		t.Error("a runtime with another domain is accepted")
	}
	want := []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: "kcp-system", Name: "kyma-1"}}}
	if diff := cmp.Diff(want, requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// All parts fit into a controller manager, which does not start here.
func TestSetUp(t *testing.T) {
	mgr := must(manager.New(&rest.Config{Host: "https://127.0.0.1:1"}, manager.Options{
		NewCache: func(*rest.Config, cache.Options) (cache.Cache, error) { return newObjects(), nil },
		Metrics:  server.Options{BindAddress: "0"},
	}))
	ca := must(testpki.NewCA("runtimes", testpki.Options{}))
	leaf := must(ca.Server("listener", testpki.Options{}))
	volume := testpki.NewVolume(t.TempDir())
	if err := volume.Write(testpki.Files(leaf, ca)); err != nil {
		t.Fatal(err)
	}
	authorities, certificate, key := volume.Paths()
	material, err := keys.NewFiles(keys.Paths{CA: authorities, Certificate: certificate, Key: key}, keys.FilesOptions{})
	if err := errors.Join(err, setUp(mgr, "127.0.0.1:0", material)); err != nil {
		t.Fatal(err)
	}
}

// A mock of a port, and a matcher.
func TestVerifiersJoin(t *testing.T) {
	stolen, event := errors.New("stolen"), coretest.Changed("ConfigMap", "default", "demo")
	verifier := coremock.NewMockVerifier(gomock.NewController(t))
	verifier.EXPECT().Verify(gomock.Any(), core.Peer{ID: "runtime-1"}, coremock.Event(event)).Return(stolen)
	all := listener.AllOf(listener.InsecureAllowAll(), verifier)
	if err := all.Verify(t.Context(), core.Peer{ID: "runtime-1"}, &event); !errors.Is(err, stolen) {
		t.Errorf("error %v, want %v", err, stolen)
	}
}

func kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// empty is an object of the kind that represents runtimes.
func empty() *metav1.PartialObjectMetadata {
	kyma := &metav1.PartialObjectMetadata{}
	kyma.SetGroupVersionKind(kind())
	return kyma
}

func setUp(mgr manager.Manager, addr string, material keys.Source) error {
	runtimes, err := controllerruntime.NewRuntimes(mgr.GetCache(), empty(), controllerruntime.ByLabel("runtime-id"),
		controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}
	watched, err := fleet.New(fleet.Options{})
	if err != nil {
		return err
	}
	events, source, err := controllerruntime.RegisterListenerComponent(controllerruntime.ListenerConfig{
		Addr: addr, Senders: controllerruntime.MutualTLS(material), Verifier: listener.SANPinning(runtimes),
		Fleet: watched, Runtimes: runtimes,
	}, myOperator, controllerruntime.EnqueueByRuntime(runtimes), controllerruntime.SourceOptions{Elected: mgr.Elected()})
	if err != nil {
		return err
	}
	return errors.Join(mgr.Add(events), builder.ControllerManagedBy(mgr).For(empty(), builder.OnlyMetadata).
		WatchesRawSource(source).Complete(&reconciler{runtimes: runtimes, fleet: watched, look: lookAt}))
}

// reconciler looks at one runtime, and again later.
type reconciler struct {
	runtimes *controllerruntime.Runtimes
	fleet    *fleet.Fleet
	look     func(context.Context, core.RuntimeID) error
}

func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	id, err := r.runtimes.ID(ctx, request.NamespacedName)
	if err != nil || id == "" {
		return reconcile.Result{}, err // An object that is gone is not polled.
	}
	if err := r.look(ctx, id); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: r.fleet.RequeueAfter(id).Round(time.Second)}, nil
}

func lookAt(context.Context, core.RuntimeID) error { return nil }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
