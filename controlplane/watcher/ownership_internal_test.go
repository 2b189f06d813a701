package watcher

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
)

// routedWatcher has a route through the gateway of newRouteWorld.
func routedWatcher(uid types.UID) *v1beta2.Watcher {
	w := newWatcher()
	w.UID = uid
	w.Spec.ServiceInfo = v1beta2.Service{Name: "operator", Namespace: "kcp-system", Port: 443}
	w.Spec.Gateway.LabelSelector.MatchLabels = map[string]v1beta2.LabelValue{"a": "b"}

	return w
}

// newRouteWorld has a gateway of each kind, and the objects.
func newRouteWorld(t *testing.T, routes Routing, owner string, objects ...client.Object) *reconciler {
	t.Helper()

	scheme := runtime.NewScheme()
	check(t, AddToScheme(scheme))
	gateway := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: "g", Labels: map[string]string{"a": "b"}}}
	gateway.Spec.Listeners = []gatewayv1.Listener{{Name: "https", Protocol: gatewayv1.HTTPSProtocolType, Port: 443}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(objects, gateway)...).
		WithStatusSubresource(newWatcher()).Build()
	opts := Options{Routing: routes, Owner: owner}.withDefaults()

	return &reconciler{
		client: c, fresh: c, gateways: c, events: events.NewFakeRecorder(100), routing: opts.newRouting(), opts: opts,
	}
}

// reasonOf reconciles the Watcher once, and returns the reason of its condition.
func (r *reconciler) reasonOf(t *testing.T) string {
	t.Helper()

	_, ready := reconcileOnce(t, r)
	return ready.Reason
}

// ownedRoute belongs to the Watcher with that UID.
func ownedRoute(route client.Object, uid types.UID, mark string) client.Object {
	route.SetNamespace("kcp")
	route.SetName("kyma")
	route.SetUID("of the route")
	route.SetLabels(map[string]string{names.Names{}.ManagedBy(): fieldOwner})
	owner := newWatcher()
	owner.UID = uid
	route.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, names.Names{}.GroupVersionKind())})

	if mark != "" {
		route.SetAnnotations(map[string]string{names.Names{}.InstalledBy(): mark})
	}

	return route
}

// Routes of another control plane have the names and the labels of ours, and differ in the UID of
// the Watcher, or in the mark. They come from a backup, for example. They stay as they are.
func TestRoutesOfAnotherControlPlaneStay(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		route     client.Object
		routes    Routing
		owner     string
		wantTaken bool
	}{
		"another UID":           {ownedRoute(&gatewayv1.HTTPRoute{}, "theirs", ""), HTTPRoute, "", false},
		"another mark":          {ownedRoute(&gatewayv1.HTTPRoute{}, "ours", "b"), HTTPRoute, "a", false},
		"a mark, and we none":   {ownedRoute(&gatewayv1.HTTPRoute{}, "ours", "b"), HTTPRoute, "", false},
		"another kind":          {ownedRoute(&networkingv1beta1.VirtualService{}, "theirs", ""), HTTPRoute, "", false},
		"another kind and mark": {ownedRoute(&networkingv1beta1.VirtualService{}, "ours", "b"), HTTPRoute, "a", false},
		"no routes at all":      {ownedRoute(&gatewayv1.HTTPRoute{}, "theirs", ""), NoRouting, "", false},
		"control: ours":         {ownedRoute(&gatewayv1.HTTPRoute{}, "ours", ""), HTTPRoute, "a", true},
		"control: our mark":     {ownedRoute(&gatewayv1.HTTPRoute{}, "ours", "a"), HTTPRoute, "a", true},
		"control: our kind":     {ownedRoute(&networkingv1beta1.VirtualService{}, "ours", "a"), HTTPRoute, "a", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			r := newRouteWorld(t, row.routes, row.owner, routedWatcher("ours"), row.route)
			read := func() map[string]any {
				live, _ := row.route.DeepCopyObject().(client.Object)
				err := r.client.Get(t.Context(), client.ObjectKeyFromObject(row.route), live)
				if apierrors.IsNotFound(err) {
					return nil
				}

				check(t, err)
				content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(live)
				check(t, err)

				return content
			}

			before := read()
			_, isSameKind := row.route.(*gatewayv1.HTTPRoute)
			reason := r.reasonOf(t)
			if isConflict := reason == v1beta2.ReasonRouteConflict; isConflict != (!row.wantTaken && isSameKind && row.routes != NoRouting) {
				t.Errorf("the reason is %s", reason)
			}

			check(t, r.client.Delete(t.Context(), routedWatcher("ours")))
			_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(newWatcher())})
			check(t, err)

			if row.wantTaken {
				if after := read(); after != nil {
					t.Errorf("our route is left: %+v", after)
				}
				return
			}

			if diff := cmp.Diff(before, read()); diff != "" {
				t.Errorf("the route of others (-before +after):\n%s", diff)
			}
		})
	}
}

// A Watcher is deleted and created again. A process that has seen the former one replaces its route.
// Another process cannot know whose route that is, and leaves it to the garbage collector.
func TestARouteOfAFormerWatcher(t *testing.T) {
	t.Parallel()
	for name, hasSeen := range map[string]bool{"seen": true, "another process": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			r := newRouteWorld(t, HTTPRoute, "", routedWatcher("first"))
			if reason := r.reasonOf(t); reason != v1beta2.ReasonRoutePending {
				t.Fatalf("the reason is %s, want that the route is applied", reason)
			}

			check(t, r.client.Delete(t.Context(), routedWatcher("first")))
			check(t, r.client.Create(t.Context(), routedWatcher("second")))

			if !hasSeen {
				r.seen.Clear()
			}

			want := v1beta2.ReasonRouteConflict
			if hasSeen {
				want = v1beta2.ReasonRoutePending
			}
			if reason := r.reasonOf(t); reason != want {
				t.Errorf("the reason is %s, want %s", reason, want)
			}
		})
	}
}
