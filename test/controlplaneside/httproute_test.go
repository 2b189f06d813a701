package controlplaneside

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/watcher"
)

const (
	tcpGateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gateway, namespace: istio-system, labels: {for: kyma}}
spec:
  gatewayClassName: istio
  listeners: [{name: tcp, port: 9000, protocol: TCP}]
`
	httpsGateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gateway, namespace: istio-system, labels: {for: kyma}}
spec:
  gatewayClassName: istio
  listeners:
    - name: https
      port: 443
      protocol: HTTPS
      hostname: listener.example.com
      tls: {mode: Terminate, certificateRefs: [{name: gateway}]}
      allowedRoutes: {namespaces: {from: All}}
`
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
	createNamespace(t, r.plane, "istio-system")

	r.newWatcher("kyma", nil)

	if message := r.await("kyma", v1beta2.StateError, watcher.ReasonGatewayNotFound); !strings.Contains(message, "for=kyma") {
		t.Errorf("message %q does not name the selector", message)
	}

	r.applyYAML(tcpGateway)
	r.await("kyma", v1beta2.StateError, watcher.ReasonGatewayWithoutHosts)

	r.applyYAML(httpsGateway)
	r.await("kyma", v1beta2.StateReady, watcher.ReasonRouteApplied)
	r.awaitSpec("kyma", wantedHTTPRoute)

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
		r.applyYAML(strings.NewReplacer("name: gateway,", fmt.Sprintf("name: gateway-%d,", i), "for: kyma", "for: many").Replace(httpsGateway))
	}

	r.newWatcher("many", nil)

	if message := r.await("many", v1beta2.StateError, watcher.ReasonRouteRefused); !strings.Contains(message, "parentRefs") {
		t.Errorf("message %q does not say what is wrong", message)
	}
}
