package watchers

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
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
	for kind, namespaces := range map[watcher.Routing][]string{
		watcher.VirtualService: {"istio-system", "kcp-system"},
		watcher.HTTPRoute:      {"gateways", "kcp-system", "operators"},
	} {
		t.Run(string(kind), func(t *testing.T) {
			path := map[watcher.Routing]string{
				watcher.VirtualService: "deploy/istio", watcher.HTTPRoute: "deploy/gateway-api",
			}[kind]
			r := newRoutes(t, kind)
			r.end()
			for _, namespace := range namespaces {
				createNamespace(t, r.plane, namespace)
			}
			// The roles replace those of newRoutes.
			t.Log(rig.Kubectl(t, "--kubeconfig", r.plane.Kubeconfig, "apply", "--server-side", "--force-conflicts",
				"--validate=strict", "-k", path))
			r.become(path)
			r.publishesOneSecret(namespaces[0])
			r.opts.GatewayNamespaces = namespaces[:1]
			r.start()
			r.applyYAML(elsewhere(kind))
			r.newWatcher("led", selectsDefault)
			r.newWatcher("lost", nil)
			r.leads("led", namespaces[0]+"/runtime-watcher")
			r.await("lost", "Error", "GatewayNotFound", "in "+namespaces[0])
		})
	}
}

// become gives the user of the controller the rights of the ServiceAccount in an overlay.
func (r *routes) become(path string) {
	r.t.Helper()
	for document := range strings.SplitSeq(rig.Kubectl(r.t, "kustomize", path), "\n---\n") {
		object := &unstructured.Unstructured{}
		r.must(yaml.Unmarshal([]byte(document), &object.Object))
		if kind := object.GetKind(); kind != "ClusterRoleBinding" && kind != "RoleBinding" {
			continue
		}
		subjects := []any{map[string]any{"apiGroup": rbacv1.GroupName, "kind": "User", "name": "controller"}}
		r.must(unstructured.SetNestedSlice(object.Object, subjects, "subjects"))
		stored := rig.Stored(r.t, r.plane.Client, client.ObjectKeyFromObject(object), object.DeepCopy())
		object.SetResourceVersion(stored.GetResourceVersion())
		r.must(r.plane.Client.Update(r.t.Context(), object))
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

func selectsDefault(w *v1beta2.Watcher) {
	w.Spec.Gateway.LabelSelector.MatchLabels = map[string]v1beta2.LabelValue{
		"operator.kyma-project.io/watcher-gateway": "default",
	}
}

// leads wants the route of a Watcher to be bound to one gateway.
func (r *routes) leads(name, gateway string) {
	r.t.Helper()
	rig.Eventually(r.t, rig.Patience, "there is a route for "+name, func() bool { return r.route(name) != nil })
	spec := r.route(name).Object["spec"]
	text, err := yaml.Marshal(spec)
	r.must(err)
	namespace, base, _ := strings.Cut(gateway, "/")
	if !strings.Contains(string(text), gateway) &&
		(!strings.Contains(string(text), "name: "+base) || !strings.Contains(string(text), "namespace: "+namespace)) ||
		strings.Contains(string(text), "elsewhere") {
		r.t.Errorf("route of %s has\n%s\nwant the gateway %s alone", name, text, gateway)
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
