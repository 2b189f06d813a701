package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/mock/gomock"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coremock"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/fleet/fleettest"
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

func newWorld(t *testing.T) *world {
	t.Helper()
	kyma := &metav1.PartialObjectMetadata{}
	kyma.Name, kyma.Namespace = "kyma-1", "kcp-system"
	kyma.Labels = map[string]string{"runtime-id": "runtime-1"}
	kyma.Annotations = map[string]string{controllerruntime.DomainAnnotation: "one.example.com"}
	w := &world{objects: controllerruntimetest.NewCache(kyma)}
	var err error
	w.runtimes, err = controllerruntime.NewRuntimes(t.Context(), w.objects, kind(), controllerruntime.ByLabel("runtime-id"),
		controllerruntime.RuntimesOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.fleet, err = fleet.New(fleet.Options{Random: func() float64 { return 0.5 }})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// The operator polls by freshness, of the runtime that the object stands for.
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
	fleettest.Fresh(w.fleet, "runtime-1", myOperator)
	poll(30 * time.Minute)
	fleettest.Degraded(w.fleet, "runtime-1", myOperator, fleet.ReasonCanaryLost)
	poll(time.Minute)
	fleettest.Unproved(w.fleet, "runtime-1", myOperator)
	poll(5 * time.Minute)
	fleettest.Stale(w.fleet, "runtime-1", myOperator)
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
	l, err := listener.New(listenertest.Peers(), listener.SANPinning(w.runtimes),
		map[core.Manager]core.Handler{myOperator: handler}, listener.Options{Fleet: w.fleet})
	if err != nil {
		t.Fatal(err)
	}
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
