package controlplaneside

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/test/manifests"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// Resources in the shape that they have in today's fleet: everything in kcp-system, a finalizer on
// the Watcher, and a Gateway that serves plain HTTP without tls.
const (
	todaysGateway = `
apiVersion: networking.istio.io/v1beta1
kind: Gateway
metadata:
  name: watcher-gateway
  namespace: kcp-system
  labels: {operator.kyma-project.io/watcher-gateway: default}
spec:
  selector: {istio: ingressgateway}
  servers:
    - hosts: [listener.kyma.example.com]
      port: {name: http, number: 80, protocol: HTTP}
`
	todaysWatcher = `
apiVersion: operator.kyma-project.io/v1beta2
kind: Watcher
metadata:
  name: kyma-watcher
  namespace: kcp-system
  labels: {operator.kyma-project.io/managed-by: lifecycle-manager}
  finalizers: [operator.kyma-project.io/watcher, example.com/foreign]
spec:
  labelsToWatch: {operator.kyma-project.io/watched-by: kyma}
  resourceToWatch: {group: operator.kyma-project.io, version: "*", resource: kymas}
  field: spec
  serviceInfo: {name: klm-event-service, namespace: kcp-system, port: 8082}
  gateway:
    selector:
      matchLabels: {operator.kyma-project.io/watcher-gateway: default}
`
)

// todays is a Watcher of today's fleet and its route.
type todays struct{ *routes }

func (r todays) key() types.NamespacedName {
	return types.NamespacedName{Namespace: "kcp-system", Name: "kyma-watcher"}
}

func (r todays) stored() *v1beta2.Watcher {
	r.t.Helper()

	w := &v1beta2.Watcher{}
	if err := r.plane.Client.Get(r.t.Context(), r.key(), w); err != nil {
		r.must(client.IgnoreNotFound(err))

		return nil
	}

	return w
}

func (r todays) hosts() []string {
	route := r.empty(r.key().Name)
	route.SetNamespace(r.key().Namespace)

	if err := r.plane.Client.Get(r.t.Context(), client.ObjectKeyFromObject(route), route); err != nil {
		r.must(client.IgnoreNotFound(err))

		return nil
	}

	hosts, _, _ := unstructured.NestedStringSlice(route.Object, "spec", "hosts")

	return hosts
}

func TestTodaysWatcherGetsARouteAndCanBeDeleted(t *testing.T) {
	r := todays{newRoutes(t, watcher.VirtualService)}
	createNamespace(t, r.plane, "kcp-system")
	r.applyYAML(todaysGateway)
	r.must(r.plane.Client.Create(t.Context(), manifests.Object(t, todaysWatcher)))

	rig.Eventually(t, patience, "plain HTTP is routed", func() bool {
		return len(r.hosts()) == 1 && r.hosts()[0] == "listener.kyma.example.com"
	})
	rig.Eventually(t, patience, "the finalizer is taken off", func() bool {
		finalizers := r.stored().Finalizers

		return len(finalizers) == 1 && finalizers[0] == "example.com/foreign"
	})

	r.must(r.plane.Client.Delete(t.Context(), r.stored()))
	rig.Eventually(t, patience, "the route ends with the deletion", func() bool { return r.hosts() == nil })

	held := r.stored()
	held.Finalizers = nil
	r.must(r.plane.Client.Update(t.Context(), held))
	rig.Eventually(t, patience, "the Watcher is gone", func() bool { return r.stored() == nil })
}

// The finalizer may have come while no controller ran.
func TestTodaysWatcherIsLetGoAfterARestart(t *testing.T) {
	r := todays{newRoutes(t, watcher.VirtualService)}
	createNamespace(t, r.plane, "kcp-system")
	r.end()

	w := manifests.Object(t, todaysWatcher)
	w.SetFinalizers([]string{"operator.kyma-project.io/watcher"})
	r.must(r.plane.Client.Create(t.Context(), w))
	r.must(r.plane.Client.Delete(t.Context(), w))
	r.start()

	rig.Eventually(t, patience, "the Watcher is gone", func() bool { return r.stored() == nil })
}
