package watchers

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

// TestOverlays applies deploy/istio and deploy/gateway-api to an API server that refuses unknown
// fields. A controller with the rights of the overlay, and no others, leads a Watcher through its
// gateway, and ignores a gateway of another namespace. These rights suffice for one Secret.
func TestOverlays(t *testing.T) {
	for kind, overlay := range map[watcher.Routing]struct{ path, gateways, bound string }{
		watcher.VirtualService: {"deploy/istio", "istio-system", "gateways:\n- istio-system/runtime-watcher\nhosts:"},
		watcher.HTTPRoute: {"deploy/gateway-api", "gateways", `parentRefs:
- group: gateway.networking.k8s.io
  kind: Gateway
  name: runtime-watcher
  namespace: gateways
rules:`},
	} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRoutes(t, kind)
			// The roles replace those of newRoutes.
			t.Log(rig.Kubectl(t, "--kubeconfig", r.plane.Kubeconfig, "apply", "--server-side", "--force-conflicts",
				"--validate=strict", "-k", overlay.path))
			r.publishesOneSecret(overlay.gateways)
			r.opts.GatewayNamespaces = []string{overlay.gateways}
			r.start()
			r.applyYAML(elsewhere(kind))
			r.newWatcher("led", func(w *v1beta2.Watcher) {
				w.Spec.Gateway.LabelSelector.MatchLabels = map[string]v1beta2.LabelValue{"operator.kyma-project.io/watcher-gateway": "default"}
			})
			r.newWatcher("lost", nil)
			rig.Eventually(t, rig.Patience, "there is a route", func() bool { return r.route("led") != nil })
			rig.Says(t, "route", string(rig.Must(yaml.Marshal(r.route("led").Object["spec"]))), overlay.bound)
			r.await("lost", "Error", "GatewayNotFound", "in "+overlay.gateways)
		})
	}
}

// publishesOneSecret wants the rights of the overlay to be enough for the Secret of the gateway, and
// for no other.
func (r *routes) publishesOneSecret(namespace string) {
	r.t.Helper()
	user, err := client.New(r.user, client.Options{Scheme: r.scheme})
	r.must(err)
	secret := func(name string) *unstructured.Unstructured {
		return manifests.Object(r.t, "{apiVersion: v1, kind: Secret, metadata: {namespace: "+namespace+", name: "+name+"}}")
	}
	published := client.ApplyConfigurationFromUnstructured(secret("runtime-watcher-listener"))
	rig.Eventually(r.t, rig.Patience, "the Secret can be published", func() bool { // Rights take effect after a moment.
		return user.Apply(r.t.Context(), published, client.FieldOwner("certificates")) == nil
	})
	if err := user.Create(r.t.Context(), secret("another")); !apierrors.IsForbidden(err) {
		r.t.Errorf("creation of another Secret in %s returns %v, want forbidden", namespace, err)
	}
}

// elsewhere is a gateway that two Watchers select, in a namespace that does not count.
func elsewhere(kind watcher.Routing) string {
	text := istioGateway("lost", "elsewhere.example.com")
	if kind == watcher.HTTPRoute {
		text = httpGateway("gateway-lost", "lost", httpsListener)
	}
	return strings.NewReplacer("gateway-lost", "elsewhere", "istio-system", "default",
		"for: lost", "for: lost, operator.kyma-project.io/watcher-gateway: default").Replace(text)
}

// stamping counts the writes of each route in an annotation, also those that change nothing else.
const stamping = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: stamps}
spec:
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
      - {apiGroups: ["*"], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [virtualservices, httproutes]}
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: >-
          [JSONPatch{op: "add", path: "/metadata/annotations", value: {"stamp": string(
          has(object.metadata.annotations) && "stamp" in object.metadata.annotations ?
          int(object.metadata.annotations["stamp"]) + 1 : 1)}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: stamps}
spec: {policyName: stamps}
`

// A webhook that changes each write must not make the controller write for ever.
func TestAStampOnEachWriteStartsNoLoop(t *testing.T) {
	for _, kind := range []watcher.Routing{watcher.VirtualService, watcher.HTTPRoute} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRoutes(t, kind)
			r.start()
			for document := range strings.SplitSeq(stamping, "---\n") {
				r.applyYAML(document)
				t.Cleanup(func() { rig.NoError(t, r.plane.Client.Delete(context.Background(), manifests.Object(t, document))) })
			}
			r.applyYAML(map[watcher.Routing]string{
				watcher.VirtualService: istioGateway("kyma", "a.example.com"), watcher.HTTPRoute: httpGateway("gateway", "kyma", httpsListener),
			}[kind])
			r.newWatcher("kyma", nil)
			rig.Eventually(t, rig.Patience, "the route is stamped", func() bool {
				route := r.route("kyma")
				if route != nil && route.GetAnnotations()["stamp"] == "" {
					r.edit("kyma", func(route *unstructured.Unstructured) { addLabel(route, "policy", "waits") })
				}
				return route != nil && route.GetAnnotations()["stamp"] != ""
			})
			last := ""
			same := 0
			rig.Eventually(t, rig.Patience, "nobody writes the route any more", func() bool {
				stamp := r.route("kyma").GetAnnotations()["stamp"]
				same++
				if stamp != last {
					last = stamp
					same = 0
				}
				return same == 20
			})
		})
	}
}
