package watchers

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

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
			createNamespace(t, r.plane, "istio-system")
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
			last, same := "", 0
			rig.Eventually(t, rig.Patience, "nobody writes the route any more", func() bool {
				stamp := r.route("kyma").GetAnnotations()["stamp"]
				same++
				if stamp != last {
					last, same = stamp, 0
				}
				return same == 20
			})
		})
	}
}
