package watcher

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
)

func newWatcher() *v1beta2.Watcher {
	return &v1beta2.Watcher{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: "kyma", Generation: 3},
		Spec: v1beta2.WatcherSpec{
			Manager:         "kyma",
			ResourceToWatch: v1beta2.WatchableGVR{Version: "v1", Resource: "configmaps"},
		},
	}
}

// newReadyWorld has a Watcher without route.
func newReadyWorld(t *testing.T, w *v1beta2.Watcher, funcs interceptor.Funcs) *reconciler {
	t.Helper()

	scheme := runtime.NewScheme()
	check(t, AddToScheme(scheme))
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(w).WithStatusSubresource(w).
		WithInterceptorFuncs(funcs).Build()

	return &reconciler{client: c, fresh: c, gateways: c, events: events.NewFakeRecorder(100)}
}

func reconcileOnce(t *testing.T, r *reconciler) (reconcile.Result, *metav1.Condition) {
	t.Helper()

	key := client.ObjectKeyFromObject(newWatcher())
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	check(t, err)
	stored := &v1beta2.Watcher{}
	check(t, r.client.Get(t.Context(), key, stored))

	ready := meta.FindStatusCondition(stored.Status.Conditions, v1beta2.ConditionReady)
	if ready == nil {
		t.Fatal("no condition Ready")
	}
	if ready.ObservedGeneration != 3 {
		t.Errorf("Ready is of generation %d, want 3", ready.ObservedGeneration)
	}

	return result, ready
}

// A Watcher is ready when a runtime watches it, and stays so while runtimes are away.
func TestReadyTellsOfTheRuntimes(t *testing.T) {
	r := newReadyWorld(t, newWatcher(), interceptor.Funcs{})
	installed := 0
	all := 2
	r.opts.Installed = func(name types.NamespacedName, generation int64) (int, int) {
		if name.Name != "kyma" || generation != 3 {
			t.Errorf("asked for %v, %d", name, generation)
		}
		return installed, all
	}

	steps := []struct {
		installed, all int
		want           metav1.ConditionStatus
		message        string
	}{
		{0, 2, metav1.ConditionFalse, "installed in 0 of 2 runtimes"},
		{1, 2, metav1.ConditionTrue, "installed in 1 of 2 runtimes"},
		{0, 2, metav1.ConditionTrue, "installed in 0 of 2 runtimes"},
	}
	for _, step := range steps {
		installed, all = step.installed, step.all
		result, ready := reconcileOnce(t, r)
		if ready.Status != step.want || !strings.Contains(ready.Message, step.message) || result.RequeueAfter <= 0 {
			t.Errorf("%+v: got %+v, again in %v", step, ready, result.RequeueAfter)
		}
	}
}

func TestReadyTellsOfTheRoute(t *testing.T) {
	broken := newWatcher()
	broken.Spec.Manager = "not a label"
	if _, ready := reconcileOnce(t, newReadyWorld(t, broken, interceptor.Funcs{})); ready.Status != metav1.ConditionFalse {
		t.Errorf("a broken Watcher is %+v", ready)
	}

	result, ready := reconcileOnce(t, newReadyWorld(t, newWatcher(), interceptor.Funcs{}))
	if ready.Status != metav1.ConditionTrue || strings.Contains(ready.Message, "watch it") || result.RequeueAfter != 0 {
		t.Errorf("without runtimes: %+v, again in %v", ready, result.RequeueAfter)
	}
}

// A Watcher of an operator without routes has neither a service nor a gateway.
func TestRoutesNeedAServiceAndAGateway(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*v1beta2.WatcherSpec)
		routing routing
		reason  string
	}{
		"no routes":              {func(s *v1beta2.WatcherSpec) { s.ServiceInfo = v1beta2.Service{} }, nil, v1beta2.ReasonRouteNotNeeded},
		"no service":             {func(s *v1beta2.WatcherSpec) { s.ServiceInfo = v1beta2.Service{} }, virtualServices{}, v1beta2.ReasonServiceMissing},
		"no gateway":             {func(*v1beta2.WatcherSpec) {}, virtualServices{}, v1beta2.ReasonGatewayMissing},
		"no gateway, HTTPRoutes": {func(*v1beta2.WatcherSpec) {}, httpRoutes{}, v1beta2.ReasonGatewayMissing},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatcher()
			w.Spec.ServiceInfo = v1beta2.Service{Name: "operator", Namespace: "kcp-system", Port: 443}
			test.change(&w.Spec)
			r := newReadyWorld(t, w, interceptor.Funcs{})
			r.routing = test.routing
			_, ready := reconcileOnce(t, r)
			if ready.Reason != test.reason || (ready.Status == metav1.ConditionTrue) != (test.routing == nil) {
				t.Errorf("%+v, want the reason %s", ready, test.reason)
			}
		})
	}
}

// An older Watcher without a route leads no manager anywhere.
func TestAWatcherWithoutRouteIsNoElder(t *testing.T) {
	r := &reconciler{}
	elder := newWatcher()
	w := newWatcher()
	elder.Name = "elder"
	elder.Spec.Manager = "m"
	w.Spec.Manager = "m"
	w.CreationTimestamp = metav1.NewTime(elder.CreationTimestamp.Add(time.Hour))
	w.Spec.ServiceInfo = v1beta2.Service{Name: "operator", Namespace: "kcp-system", Port: 443}

	if found := r.elderOf(w, "m", []v1beta2.Watcher{*elder, *w}); found != nil {
		t.Errorf("the route yields to %s", found.Name)
	}

	elder.Spec.ServiceInfo = v1beta2.Service{Name: "another", Namespace: "kcp-system", Port: 443}
	elder.Spec.Gateway.LabelSelector.MatchLabels = map[string]v1beta2.LabelValue{"a": "b"}
	if found := r.elderOf(w, "m", []v1beta2.Watcher{*elder, *w}); found == nil {
		t.Error("the control: an older Watcher with another service has the manager")
	}
}

// The cache of a controller lags behind its own writes.
func TestAConflictIsNoError(t *testing.T) {
	conflicts := interceptor.Funcs{SubResourceUpdate: func(
		context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption,
	) error {
		return apierrors.NewConflict(schema.GroupResource{Resource: "watchers"}, "kyma", nil)
	}}

	r := newReadyWorld(t, newWatcher(), conflicts)
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(newWatcher())}
	if result, err := r.Reconcile(t.Context(), request); err != nil || result.RequeueAfter <= 0 {
		t.Errorf("got %+v, %v, want another attempt", result, err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// failing is an API server that answers every read with the same error.
type failing struct {
	client.Reader

	err error
}

func (f failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return f.err
}

// A control plane may have, or allow, one kind of routes only.
func TestRoutesOfAnotherKindNeedNotBeReadable(t *testing.T) {
	t.Parallel()

	resource := schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "httproutes"}
	away := errors.New("the API server is away")
	for name, test := range map[string]struct{ answer, want error }{
		"not found":     {apierrors.NewNotFound(resource, "kyma"), nil},
		"not installed": {&meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: resource.Group, Kind: "HTTPRoute"}}, nil},
		"not allowed":   {apierrors.NewForbidden(resource, "kyma", errors.New("no rule")), nil},
		"another error": {away, away},
	} {
		r := &reconciler{fresh: failing{err: test.answer}, routing: virtualServices{}}
		of := identity{name: types.NamespacedName{Namespace: "kcp-system", Name: "kyma"}}
		err := r.removeRoutes(t.Context(), of, r.routeKind())
		if !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
	}
}

func TestARouteIsAppliedAgainForItsOwnFieldsOnly(t *testing.T) {
	tests := map[string]struct {
		change func(route client.Object)
		want   bool
	}{
		"annotation": {func(o client.Object) { o.SetAnnotations(map[string]string{"stamp": "2"}) }, false},
		"label":      {func(o client.Object) { o.SetLabels(map[string]string{"stamp": "2"}) }, false},
		"version":    {func(o client.Object) { o.SetResourceVersion("8") }, false},
		"own label":  {func(o client.Object) { o.SetLabels(map[string]string{names.Names{}.ManagedBy(): "2"}) }, true},
		"mark":       {func(o client.Object) { o.SetAnnotations(map[string]string{names.Names{}.InstalledBy(): "2"}) }, true},
		"owner":      {func(o client.Object) { o.SetOwnerReferences([]metav1.OwnerReference{{}}) }, true},
		"spec":       {func(o client.Object) { o.SetGeneration(2) }, true},
	}
	for name, test := range tests {
		for _, before := range []client.Object{&gatewayv1.HTTPRoute{}, &networkingv1beta1.VirtualService{}} {
			after, _ := before.DeepCopyObject().(client.Object)
			test.change(after)
			if got := ownFields(names.Names{}).Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != test.want {
				t.Errorf("%s of %T: %t", name, before, got)
			}
		}
	}

	accepted := &gatewayv1.HTTPRoute{}
	accepted.Status.Parents = []gatewayv1.RouteParentStatus{{}}
	if !ownFields(names.Names{}).Update(event.UpdateEvent{ObjectOld: &gatewayv1.HTTPRoute{}, ObjectNew: accepted}) {
		t.Error("the verdict of a gateway is not seen")
	}
}
