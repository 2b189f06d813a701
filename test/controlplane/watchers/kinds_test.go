package watchers

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

// istioGateway is a gateway for the Watcher of that name, with one server that has these hosts.
func istioGateway(name, hosts string) string {
	return fmt.Sprintf(`
apiVersion: networking.istio.io/v1beta1
kind: Gateway
metadata:
  name: gateway-%[1]s
  namespace: istio-system
  labels: {for: %[1]s}
spec:
  selector: {istio: ingressgateway}
  servers:
    - hosts: [%[2]s]
      port: {name: https, number: 443, protocol: HTTPS}
      tls: {mode: MUTUAL, credentialName: gateway}
`, name, hosts)
}

func virtualService(name, manager, hosts, service string) string {
	return fmt.Sprintf(`
gateways: [istio-system/gateway-%[1]s]
hosts: [%[3]s]
http:
  - match:
      - uri: {prefix: /v1/%[2]s/}
      - uri: {prefix: /v2/%[2]s/}
      - uri: {prefix: /v3/%[2]s/}
    route:
      - destination: {host: %[4]s, port: {number: 8082}}
    retries: {attempts: 2, retryOn: "connect-failure,refused-stream,unavailable,cancelled,503"}
`, name, manager, hosts, service)
}

const events = "events.kcp-system.svc.cluster.local"

func TestVirtualServices(t *testing.T) {
	r := newRoutes(t, watcher.VirtualService)
	r.start()
	run := func(name string, test func(*routes)) {
		t.Run(name, func(t *testing.T) {
			r.t = t
			test(r)
		})
	}
	run("two Watchers, one manager", sharedManager) // First of all, so that one of the two is left alone.
	for name, test := range map[string]func(*routes){
		"the gateway appears": gatewayAppears, "hosts change": hostsChange, "edited by hand": editedByHand,
		"applied by another owner": appliedByAnotherOwner, "the Watcher changes": watcherChanges,
		"a route that is not ours": foreignRoute, "a restored route": restoredRoute, "no manager": noManager, "restarted": restarted,
	} {
		run(name, test)
	}
	r.t = t
}

// routed makes a Watcher and its gateway, and returns when it has its route.
func (r *routes) routed(name string) (route string) {
	r.t.Helper()
	route = virtualService(name, "manager-"+name, "a.example.com", events)
	r.applyYAML(istioGateway(name, "a.example.com"))
	r.newWatcher(name, nil)
	r.awaitSpec(name, route)
	return route
}

func gatewayAppears(r *routes) {
	r.newWatcher("appears", nil)
	r.await("appears", "Error", "GatewayNotFound", "for=appears")
	r.awaitEvent("appears", "GatewayNotFound", "for=appears")
	r.applyYAML(istioGateway("appears", "listener.example.com"))
	r.await("appears", "Ready", "RouteApplied")
	r.awaitSpec("appears", virtualService("appears", "manager-appears", "listener.example.com", events))
	r.awaitEvent("appears", "RouteApplied", "/v2/manager-appears/")
	r.deleteWatcher("appears")
	r.awaitNoRoute("appears")
}

func hostsChange(r *routes) {
	r.applyYAML(istioGateway("hosts", ""))
	r.newWatcher("hosts", nil)
	r.await("hosts", "Error", "GatewayWithoutHosts", "istio-system/gateway-hosts")
	r.awaitEvent("hosts", "GatewayWithoutHosts", "for=hosts")
	r.applyYAML(istioGateway("hosts", "./b.example.com, a.example.com, '*/a.example.com'"))
	r.await("hosts", "Ready", "RouteApplied")
	r.awaitSpec("hosts", virtualService("hosts", "manager-hosts", "a.example.com, b.example.com", events))
	r.applyYAML(istioGateway("hosts", "c.example.com"))
	r.awaitSpec("hosts", virtualService("hosts", "manager-hosts", "c.example.com", events))
	// A route stays when its gateway is gone and there is no other.
	r.must(r.plane.Client.Delete(r.t.Context(), manifests.Object(r.t, istioGateway("hosts", ""))))
	r.await("hosts", "Error", "GatewayNotFound")
	r.awaitSpec("hosts", virtualService("hosts", "manager-hosts", "c.example.com", events))
}

func editedByHand(r *routes) {
	want := r.routed("edited")
	r.edit("edited", func(route *unstructured.Unstructured) {
		addLabel(route, "added", "by-hand")
		_ = unstructured.SetNestedStringSlice(route.Object, []string{"evil.example.com"}, "spec", "hosts")
		unstructured.RemoveNestedField(route.Object, "spec", "http")
	})
	r.awaitSpec("edited", want)
	rig.Same(r.t, "label of another owner", "by-hand", r.route("edited").GetLabels()["added"])
	r.must(r.plane.Client.Delete(r.t.Context(), r.empty("edited")))
	r.awaitSpec("edited", want)
}

func appliedByAnotherOwner(r *routes) {
	want := r.routed("foreign")
	theirs := r.empty("foreign")
	r.must(unstructured.SetNestedStringSlice(theirs.Object, []string{"theirs.example.com"}, "spec", "hosts"))
	r.must(r.plane.Client.Apply(r.t.Context(), client.ApplyConfigurationFromUnstructured(theirs.DeepCopy()),
		client.FieldOwner("theirs"), client.ForceOwnership))
	r.awaitSpec("foreign", want)
	// From now on the other owner gets a conflict.
	err := r.plane.Client.Apply(r.t.Context(), client.ApplyConfigurationFromUnstructured(theirs),
		client.FieldOwner("theirs"))
	rig.Fails(r.t, "another owner", err, "runtime-watcher")
}

func watcherChanges(r *routes) {
	r.routed("changes")
	r.changeWatcher("changes", func(w *v1beta2.Watcher) { w.Spec.Manager = "other" })
	r.awaitSpec("changes", virtualService("changes", "other", "a.example.com", events))
	r.changeWatcher("changes", func(w *v1beta2.Watcher) { w.Spec.ServiceInfo.Name = "more" })
	r.awaitSpec("changes", virtualService("changes", "other", "a.example.com", "more.kcp-system.svc.cluster.local"))
	r.await("changes", "Ready", "RouteApplied")
	r.changeWatcher("changes", func(w *v1beta2.Watcher) {
		w.Spec.MatchConditions = []v1beta2.MatchCondition{{Name: "large", Expression: "object.spec.size > limit"}}
	})
	r.await("changes", "Warning", "ConditionInvalid", `spec.matchConditions[large].expression: invalid expression: line 1, column 20`)
	r.awaitEvent("changes", "ConditionInvalid", "column 20")
	r.changeWatcher("changes", func(w *v1beta2.Watcher) { w.Spec.MatchConditions[0].Expression = "object.spec.size > 1" })
	r.await("changes", "Ready", "RouteApplied")
}

func sharedManager(r *routes) {
	r.applyYAML(istioGateway("one", "a.example.com"))
	r.applyYAML(istioGateway("two", "a.example.com"))
	shared := func(w *v1beta2.Watcher) { w.Spec.Manager = "shared" }
	r.newWatcher("one", shared)
	r.newWatcher("two", shared)
	for _, name := range []string{"one", "two"} {
		r.await(name, "Ready", "RouteApplied")
		r.awaitSpec(name, virtualService(name, "shared", "a.example.com", events))
	}
	r.changeWatcher("two", func(w *v1beta2.Watcher) { w.Spec.ServiceInfo.Name = "elsewhere" })
	r.await("two", "Error", "ManagerShared", "default/one")
	r.awaitNoRoute("two")
	r.await("one", "Ready", "RouteApplied")
	r.awaitSpec("one", virtualService("one", "shared", "a.example.com", events))
	// Its service gets the events when the older Watcher is gone.
	r.deleteWatcher("one")
	r.await("two", "Ready", "RouteApplied")
	r.awaitSpec("two", virtualService("two", "shared", "a.example.com", "elsewhere.kcp-system.svc.cluster.local"))
}

func foreignRoute(r *routes) {
	theirs := r.empty("taken")
	r.must(unstructured.SetNestedStringSlice(theirs.Object, []string{"theirs.example.com"}, "spec", "hosts"))
	r.must(r.plane.Client.Create(r.t.Context(), theirs))
	r.applyYAML(istioGateway("taken", "a.example.com"))
	r.newWatcher("taken", nil)
	r.await("taken", "Error", "RouteConflict", "default/taken")
	hosts, _, _ := unstructured.NestedStringSlice(r.route("taken").Object, "spec", "hosts")
	rig.Same(r.t, "hosts of the route of another owner", []string{"theirs.example.com"}, hosts)
	r.must(r.plane.Client.Delete(r.t.Context(), r.empty("taken")))
	r.await("taken", "Ready", "RouteApplied")
}

// restoredRoute has the labels and the owner of ours, with the UID of a Watcher in another control
// plane.
func restoredRoute(r *routes) {
	of := aWatcher("restored", nil)
	of.UID = "of-another-control-plane"
	theirs := r.empty("restored")
	theirs.SetLabels(map[string]string{names.Names{}.ManagedBy(): "runtime-watcher"})
	theirs.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(of, names.Names{}.GroupVersionKind())})
	r.must(unstructured.SetNestedStringSlice(theirs.Object, []string{"theirs.example.com"}, "spec", "hosts"))
	r.applyYAML(istioGateway("restored", "a.example.com"))
	r.newWatcher("restored", func(w *v1beta2.Watcher) { w.Spec.Gateway.LabelSelector.MatchLabels["for"] = "none-yet" })
	r.await("restored", "Error", "GatewayNotFound")
	r.must(r.plane.Client.Create(r.t.Context(), theirs))
	r.changeWatcher("restored", func(w *v1beta2.Watcher) { w.Spec.Gateway.LabelSelector.MatchLabels["for"] = "restored" })
	r.await("restored", "Error", "RouteConflict", "of-another-control-plane")
	hosts, _, _ := unstructured.NestedStringSlice(r.route("restored").Object, "spec", "hosts")
	rig.Same(r.t, "hosts of the route of another owner", []string{"theirs.example.com"}, hosts)
	// The garbage collector deletes it, as its owner does not exist.
	r.must(r.plane.Client.Delete(r.t.Context(), r.empty("restored")))
	r.await("restored", "Ready", "RouteApplied")
}

func noManager(r *routes) {
	r.applyYAML(istioGateway("no-manager", "a.example.com"))
	r.newWatcher("no-manager", func(w *v1beta2.Watcher) { w.Spec.Manager = "" })
	r.await("no-manager", "Error", "ManagerMissing", names.Names{}.ManagedBy())
	r.changeWatcher("no-manager", func(w *v1beta2.Watcher) { addLabel(w, names.Names{}.ManagedBy(), "Not_A_Label") })
	r.await("no-manager", "Error", "ManagerInvalid")
	r.changeWatcher("no-manager", func(w *v1beta2.Watcher) { addLabel(w, names.Names{}.ManagedBy(), "by-label") })
	r.await("no-manager", "Ready", "RouteApplied")
	r.awaitSpec("no-manager", virtualService("no-manager", "by-label", "a.example.com", events))
}

func restarted(r *routes) {
	want := r.routed("stays")
	r.applyYAML(istioGateway("goes", "a.example.com"))
	r.newWatcher("goes", ofToday)
	r.await("goes", "Ready", "RouteApplied")
	rig.Same(r.t, "finalizers", []string(nil), r.watcher("goes").Finalizers)
	r.end()
	r.deleteWatcher("goes")
	r.newWatcher("held", ofToday)
	r.deleteWatcher("held")
	r.edit("stays", func(route *unstructured.Unstructured) {
		unstructured.RemoveNestedField(route.Object, "spec", "http")
	})
	r.start()
	r.awaitSpec("stays", want)
	r.awaitNoRoute("goes")
	rig.Eventually(r.t, rig.Patience, "the Watcher that was held is gone", func() bool {
		return apierrors.IsNotFound(r.plane.Client.Get(r.t.Context(), client.ObjectKey{Namespace: "default", Name: "held"}, &v1beta2.Watcher{}))
	})
}

// ofToday gives a Watcher the finalizer of today's controller.
func ofToday(w *v1beta2.Watcher) { w.Finalizers = []string{today.Finalizer} }

// httpGateway is a gateway with a listener.
func httpGateway(name, watched, listener string) string {
	return fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: %s, namespace: istio-system, labels: {for: %s}}
spec: {gatewayClassName: istio, listeners: [%s]}
`, name, watched, listener)
}

const (
	tcpListener   = `{name: tcp, port: 9000, protocol: TCP}`
	httpsListener = `{name: https, port: 443, protocol: HTTPS, hostname: listener.example.com,
		tls: {mode: Terminate, certificateRefs: [{name: gateway}]}, allowedRoutes: {namespaces: {from: All}}}`
	wantedHTTPRoute = `
parentRefs: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: istio-system, name: gateway}]
rules:
  - matches:
      - path: {type: PathPrefix, value: /v1/manager-kyma/}
      - path: {type: PathPrefix, value: /v2/manager-kyma/}
      - path: {type: PathPrefix, value: /v3/manager-kyma/}
    backendRefs:
      - {group: "", kind: Service, namespace: kcp-system, name: events, port: 8082, weight: 1}
`
)

func TestHTTPRoutes(t *testing.T) {
	r := newRoutes(t, watcher.HTTPRoute)
	r.start()
	r.newWatcher("kyma", nil)
	r.await("kyma", "Error", "GatewayNotFound", "for=kyma")
	r.applyYAML(httpGateway("gateway", "kyma", tcpListener))
	r.await("kyma", "Error", "GatewayWithoutHosts")
	r.applyYAML(httpGateway("gateway", "kyma", httpsListener))
	r.await("kyma", "Processing", "RoutePending", "istio-system/gateway")
	r.awaitSpec("kyma", wantedHTTPRoute)
	r.answer("kyma", gatewayv1.RouteConditionAccepted, metav1.ConditionFalse, "NotAllowedByListeners")
	r.await("kyma", "Error", "RouteRejected", "NotAllowedByListeners")
	r.answer("kyma", gatewayv1.RouteConditionAccepted, metav1.ConditionTrue, "Accepted")
	r.await("kyma", "Ready", "RouteApplied")
	r.answer("kyma", gatewayv1.RouteConditionResolvedRefs, metav1.ConditionFalse, "RefNotPermitted")
	r.await("kyma", "Error", "RouteRejected")
	r.edit("kyma", func(route *unstructured.Unstructured) {
		unstructured.RemoveNestedField(route.Object, "spec", "parentRefs")
	})
	r.awaitSpec("kyma", wantedHTTPRoute)
	r.await("kyma", "Processing", "RoutePending") // The refusal was of a former generation.
	r.must(r.plane.Client.Delete(t.Context(), r.empty("kyma")))
	r.awaitSpec("kyma", wantedHTTPRoute)
	r.deleteWatcher("kyma")
	r.awaitNoRoute("kyma")
	// A route has at most 32 parents.
	for i := range 33 {
		r.applyYAML(httpGateway(fmt.Sprint("gateway-", i), "many", httpsListener))
	}
	r.newWatcher("many", nil)
	r.await("many", "Error", "RouteRefused", "parentRefs")
	r.routingChanges()
}

// answer writes the status of a route as the controller of its gateway does.
func (r *routes) answer(name string, kind gatewayv1.RouteConditionType, status metav1.ConditionStatus, reason string) {
	r.t.Helper()
	rig.Change(r.t, r.plane.Client, named(name, &gatewayv1.HTTPRoute{}), func(route *gatewayv1.HTTPRoute) error {
		route.Status.Parents = []gatewayv1.RouteParentStatus{{
			ParentRef: route.Spec.ParentRefs[0], ControllerName: "example.com/gateway-controller",
			Conditions: []metav1.Condition{{
				Type: string(kind), Status: status, Reason: reason, ObservedGeneration: route.Generation,
				LastTransitionTime: metav1.Now(),
			}},
		}}
		return r.plane.Client.Status().Update(r.t.Context(), route)
	})
}

// routingChanges removes the routes of the former kind, which would lead events past the new ones.
func (r *routes) routingChanges() {
	r.t.Helper()
	r.end()
	r.kind = string(watcher.VirtualService)
	r.opts.Routing = watcher.VirtualService
	r.start()
	r.routed("kyma")
	r.await("kyma", "Ready", "RouteApplied")
	former := r.empty("kyma")
	for _, step := range []struct {
		routing watcher.Routing
		state   string
		reason  string
	}{
		{watcher.HTTPRoute, "Processing", "RoutePending"},
		{watcher.NoRouting, "Ready", "RouteNotNeeded"},
	} {
		r.end()
		r.opts.Routing = step.routing
		r.start()
		r.await("kyma", step.state, step.reason)
		rig.Eventually(r.t, rig.Patience, "no route of the kind "+former.GetKind()+" is left", func() bool {
			return r.plane.Client.Get(r.t.Context(), client.ObjectKeyFromObject(former), former) != nil
		})
		r.kind = string(watcher.HTTPRoute)
		former = r.empty("kyma")
	}
	// Without gateways the status still reports an invalid Watcher.
	r.newWatcher("no-manager", func(w *v1beta2.Watcher) { w.Spec.Manager = "" })
	r.await("no-manager", "Error", "ManagerMissing")
}
