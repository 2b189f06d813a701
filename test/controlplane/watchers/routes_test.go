// Package watchers proves controlplane against real API servers.
package watchers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

// routes is a control plane with the controller, run by a user that has no more rights than
// deploy/controlplane gives.
type routes struct {
	t      *testing.T // of the present part
	life   *testing.T // of all parts
	plane  *apiserver.ControlPlane
	user   *rest.Config
	kind   string // of the route
	end    func() // of the controller
	scheme *runtime.Scheme
	opts   watcher.Options
}

func TestMain(m *testing.M) { os.Exit(rig.RunTests(m)) }

// newRoutes prepares a controller with routes of one kind. All tests share an API server with the
// definitions of all kinds, one after the other.
func newRoutes(t *testing.T, kind watcher.Routing) *routes {
	t.Helper()
	scheme := runtime.NewScheme()
	rig.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), watcher.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)))
	r := &routes{t: t, life: t, kind: string(kind), scheme: scheme, opts: watcher.Options{Routing: kind}}
	definitions := slices.Concat(manifests.Routes(t, watcher.VirtualService), manifests.Routes(t, watcher.HTTPRoute))
	grants := filepath.Join(filepath.Dir(definitions[1]), "gateway.networking.k8s.io_referencegrants.yaml")
	r.plane = rig.SharedAPIServer(t, apiserver.Options{
		Scheme: scheme, CRDPaths: append(definitions, grants), CRDs: []*apiextensionsv1.CustomResourceDefinition{manifests.Watchers(t)},
	})
	t.Cleanup(r.clean)
	for _, name := range []string{"gateways", "istio-system", "kcp-system", "operators"} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		r.must(client.IgnoreAlreadyExists(r.plane.Client.Create(t.Context(), namespace)))
	}
	r.grant()
	return r
}

// clean removes Watchers, gateways and routes, and the rights of the controller.
func (r *routes) clean() {
	const istio, gateways, rbac = "networking.istio.io/v1beta1", "gateway.networking.k8s.io/v1", "rbac.authorization.k8s.io/v1"
	for _, kind := range [][2]string{
		{names.Names{}.GroupVersionKind().GroupVersion().String(), "Watcher"},
		{istio, "VirtualService"},
		{istio, "Gateway"},
		{gateways, "HTTPRoute"},
		{gateways, "Gateway"},
		{rbac, "ClusterRole"},
		{rbac, "ClusterRoleBinding"},
		{rbac, "RoleBinding"},
	} {
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": kind[0], "kind": kind[1] + "List"}}
		rig.NoError(r.life, r.plane.Client.List(context.Background(), list))
		for i := range list.Items {
			// The API server has roles of its own.
			if kind[0] != rbac || strings.HasPrefix(list.Items[i].GetName(), "runtime-watcher-") {
				// A request of the controller, which has ended, may arrive late.
				rig.NoError(r.life, client.IgnoreNotFound(r.plane.Client.Delete(context.Background(), &list.Items[i])))
			}
		}
	}
}

// grant gives the account that the overlays name the rights of the controller in deploy/controlplane.
func (r *routes) grant() {
	r.t.Helper()
	role := manifests.Object(r.t, string(test.Read(r.t, "deploy/controlplane/role.yaml")))
	r.must(r.plane.Client.Create(r.t.Context(), role))
	r.must(r.plane.Client.Create(r.t.Context(), manifests.Object(r.t, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{kind: ServiceAccount, namespace: kcp-system, name: operator}]`, role.GetName()))))
	r.user = rest.CopyConfig(r.plane.Config)
	r.user.Impersonate.UserName = "system:serviceaccount:kcp-system:operator"
}

func (r *routes) must(err error) {
	r.t.Helper()
	rig.NoError(r.t, err)
}

// start runs the controller as an operator would.
func (r *routes) start() {
	r.t.Helper()
	mgr := rig.NewManager(r.t, r.user, r.scheme)
	r.must(watcher.SetUp(mgr, r.opts))
	r.end = rig.Run(r.life, "controller", mgr.Start)
}

// newWatcher creates a Watcher of that name. Its gateways have a label with that name.
func (r *routes) newWatcher(name string, change func(*v1beta2.Watcher)) {
	r.t.Helper()
	r.must(r.plane.Client.Create(r.t.Context(), aWatcher(name, change)))
}

func aWatcher(name string, change func(*v1beta2.Watcher)) *v1beta2.Watcher {
	w := &v1beta2.Watcher{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: v1beta2.WatcherSpec{
			Manager:         "manager-" + name,
			ServiceInfo:     v1beta2.Service{Name: "events", Namespace: "kcp-system", Port: 8082},
			ResourceToWatch: v1beta2.WatchableGVR{Group: "operator.kyma-project.io", Version: "*", Resource: "kymas"},
			Field:           "spec",
			Gateway: v1beta2.GatewayConfig{LabelSelector: v1beta2.GatewaySelector{
				MatchLabels: map[string]v1beta2.LabelValue{"for": v1beta2.LabelValue(name)},
			}},
		},
	}
	if change != nil {
		change(w)
	}
	return w
}

func (r *routes) changeWatcher(name string, change func(*v1beta2.Watcher)) {
	r.t.Helper()
	rig.Change(r.t, r.plane.Client, named(name, &v1beta2.Watcher{}), func(w *v1beta2.Watcher) error {
		change(w)
		return r.plane.Client.Update(r.t.Context(), w)
	})
}

// named gives an object its name, in the namespace of all Watchers and routes.
func named[T client.Object](name string, object T) T {
	object.SetNamespace("default")
	object.SetName(name)
	return object
}

func (r *routes) deleteWatcher(name string) {
	r.t.Helper()
	r.must(r.plane.Client.Delete(r.t.Context(), named(name, &v1beta2.Watcher{})))
}

func (r *routes) watcher(name string) *v1beta2.Watcher {
	r.t.Helper()
	return rig.Stored(r.t, r.plane.Client, client.ObjectKey{Namespace: "default", Name: name}, &v1beta2.Watcher{})
}

// await waits until the status of a Watcher, of its newest generation, has the state and the
// reason. Its message has these parts.
func (r *routes) await(name, state, reason string, says ...string) {
	r.t.Helper()
	var last v1beta2.WatcherStatus
	defer func() {
		if r.t.Failed() {
			r.t.Logf("status of %s: %+v", name, last)
		}
	}()
	var message string
	rig.Eventually(r.t, rig.Patience, name+" is "+state+" because "+reason, func() bool {
		w := named(name, &v1beta2.Watcher{})
		if r.plane.Client.Get(r.t.Context(), client.ObjectKeyFromObject(w), w) != nil {
			return false // It is asked again, as a controller does.
		}
		last = w.Status
		c := meta.FindStatusCondition(last.Conditions, "RouteReady")
		ready := meta.FindStatusCondition(last.Conditions, "Ready")
		if c == nil || ready == nil || string(last.State) != state || c.Reason != reason {
			return false
		}
		if min(last.ObservedGeneration, c.ObservedGeneration, ready.ObservedGeneration) != w.Generation {
			return false
		}
		message = c.Message
		r.agrees(w, ready)
		return true
	})
	rig.Says(r.t, "message of "+name, message, says...)
}

// agrees checks that Flux, Argo CD and others see the condition Ready, as kstatus computes it.
func (r *routes) agrees(w *v1beta2.Watcher, ready *metav1.Condition) {
	r.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w)
	r.must(err)
	computed, err := kstatus.Compute(&unstructured.Unstructured{Object: content})
	r.must(err)
	r.agreesWithArgo(&unstructured.Unstructured{Object: content}, string(ready.Status), ready.Reason)
	healthy := computed.Status == kstatus.CurrentStatus
	wants := w.Status.State == "Ready"
	if healthy != (ready.Status == metav1.ConditionTrue) || wants != healthy && w.Status.State != "Warning" {
		r.t.Errorf("%s is %s for kstatus (%s), its state is %s and Ready is %+v",
			w.Name, computed.Status, computed.Message, w.Status.State, ready)
	}
}

// awaitEvent waits for an Event about a Watcher with a reason and a text.
func (r *routes) awaitEvent(name, reason, want string) {
	r.t.Helper()
	rig.Eventually(r.t, rig.Patience, "an Event "+reason+" about "+name+" says "+want, func() bool {
		events := &eventsv1.EventList{}
		r.must(r.plane.Client.List(r.t.Context(), events))
		for i := range events.Items {
			e := &events.Items[i]
			if e.Regarding.Name == name && e.Reason == reason && strings.Contains(e.Note, want) {
				return true
			}
		}
		return false
	})
}

// route returns the route of a Watcher, nil when there is none.
func (r *routes) route(name string) *unstructured.Unstructured {
	r.t.Helper()
	route := r.empty(name)
	err := r.plane.Client.Get(r.t.Context(), client.ObjectKeyFromObject(route), route)
	if client.IgnoreNotFound(err) != nil {
		r.t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return route
}

func (r *routes) empty(name string) *unstructured.Unstructured {
	route := &unstructured.Unstructured{}
	route.SetAPIVersion(map[string]string{
		"VirtualService": "networking.istio.io/v1beta1",
		"HTTPRoute":      "gateway.networking.k8s.io/v1",
	}[r.kind])
	route.SetKind(r.kind)
	return named(name, route)
}

// awaitSpec waits until the route of a Watcher is as wanted, in YAML, and belongs to it.
func (r *routes) awaitSpec(name, want string) {
	r.t.Helper()
	var wanted map[string]any
	r.must(yaml.Unmarshal([]byte(want), &wanted))
	text := func(spec any) string { return string(rig.Must(yaml.Marshal(spec))) }
	var diff string
	defer func() {
		if diff != "" {
			r.t.Logf("route of %s (-want +got):\n%s", name, diff)
		}
	}()
	rig.Eventually(r.t, rig.Patience, "the route of "+name+" is as it should be", func() bool {
		diff = "no route"
		route := r.route(name)
		if route == nil {
			return false
		}
		diff = cmp.Diff(text(wanted), text(route.Object["spec"]))
		if diff != "" {
			return false
		}
		owner := metav1.GetControllerOf(route)
		if owner == nil || owner.UID != r.watcher(name).UID {
			diff = "owner is not the Watcher"
		}
		return diff == ""
	})
}

func (r *routes) awaitNoRoute(name string) {
	r.t.Helper()
	rig.Eventually(r.t, rig.Patience, "the route of "+name+" is gone", func() bool { return r.route(name) == nil })
}

// applyYAML creates or replaces an object.
func (r *routes) applyYAML(text string) {
	r.t.Helper()
	r.must(apply(r.t, r.plane, manifests.Object(r.t, text)))
}

// edit changes the route of a Watcher as an update by hand does.
func (r *routes) edit(name string, change func(*unstructured.Unstructured)) {
	r.t.Helper()
	rig.Change(r.t, r.plane.Client, r.empty(name), func(route *unstructured.Unstructured) error {
		change(route)
		return r.plane.Client.Update(r.t.Context(), route, client.FieldOwner("kubectl-edit"))
	})
}

func addLabel(o client.Object, key, value string) {
	labels := o.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	o.SetLabels(labels)
}
