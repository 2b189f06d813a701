package watchers

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

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
	r.kind, r.opts.Routing = string(watcher.VirtualService), watcher.VirtualService
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
