package chain

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
)

// Events for steady flow all the time. Watchers of the other managers are changed beside it.
const (
	steady  = core.Manager("steady")
	moving  = core.Manager("moving")
	renamed = core.Manager("renamed")
	// unwatched is a manager that no Watcher names, and for which one event has arrived.
	unwatched = core.Manager("unwatched")
)

const (
	istioGateway = `
apiVersion: networking.istio.io/v1beta1
kind: Gateway
metadata: {name: gateway, namespace: default, labels: {for: watchers}}
spec:
  selector: {istio: ingressgateway}
  servers:
    - hosts: [listener.example]
      port: {name: https, number: 443, protocol: HTTPS}
      tls: {mode: MUTUAL, credentialName: gateway}
`
)

func newWatcher(manager core.Manager, change func(*v1beta2.Watcher)) *v1beta2.Watcher {
	w := &v1beta2.Watcher{
		ObjectMeta: metav1.ObjectMeta{
			Name: string(manager), Namespace: rig.Namespace,
			Labels: map[string]string{v1beta2.ManagedByLabel: string(manager)},
		},
		Spec: v1beta2.WatcherSpec{
			ServiceInfo:     v1beta2.Service{Name: "events", Namespace: "kcp-system", Port: 8082},
			ResourceToWatch: v1beta2.WatchableGVR{Version: "*", Resource: "configmaps"},
			LabelsToWatch:   map[string]v1beta2.LabelValue{"watched-by": v1beta2.LabelValue(manager)},
			Gateway: v1beta2.GatewayConfig{LabelSelector: v1beta2.GatewaySelector{
				MatchLabels: map[string]v1beta2.LabelValue{"for": "watchers"},
			}},
		},
	}
	if change != nil {
		change(w)
	}
	return w
}

func (w *world) changeWatcher(name core.Manager, change func(*v1beta2.Watcher)) {
	w.t.Helper()
	w.eventually("the Watcher can be changed", func() bool {
		stored := &v1beta2.Watcher{}
		w.must(w.plane.Client.Get(w.t.Context(), types.NamespacedName{Namespace: rig.Namespace, Name: string(name)}, stored))
		change(stored)
		return w.plane.Client.Update(w.t.Context(), stored) == nil
	})
}

// TestChain runs a control plane with three runtimes. Two of them have changes all the time, and
// none may be lost.
func TestChain(t *testing.T) {
	w := newWorld(t, []core.Manager{steady, moving, renamed}, "runtime-1", "runtime-2", "runtime-3")
	ids := []core.RuntimeID{"runtime-1", "runtime-2", "runtime-3"}
	w.must(w.plane.Client.Create(t.Context(), manifests.Object(t, istioGateway)))
	w.must(w.plane.Client.Create(t.Context(), newWatcher(steady, nil)))
	w.must(w.plane.Client.Create(t.Context(), newWatcher(moving, nil)))
	for _, id := range ids {
		w.represent(id)
	}
	w.installed(ids...)
	w.settled(ids...)
	for _, id := range ids {
		w.eventuallyCalls(id, "default.moving", "default.steady", "canary")
		w.onlyFrom(id, w.reaches(id, moving, "first-"+string(id), labels(moving)), moving)
		w.reaches(id, steady, "steady-"+string(id), labels(steady))
	}
	w.fleet.Observe(core.Peer{ID: "runtime-1"}, unwatched, core.NewBatch(core.WatchEvent{}), nil)
	flow := []*rig.Flow{w.startFlow("runtime-1"), w.startFlow("runtime-2")}
	w.routeComesBack()
	w.watcherEdited(ids)
	w.watcherRenamed(ids)
	w.watcherDeleted(ids)
	w.runtimeRemoved("runtime-3")
	w.settled("runtime-1", "runtime-2")
	w.knows("runtime-1", steady, unwatched)
	w.knows("runtime-2", steady)
	before := []int{flow[0].Count(), flow[1].Count()}
	w.rotation("runtime-1", "runtime-2")
	for i := range flow {
		flow[i].Settle(patience, before[i])
	}
}

func labels(manager core.Manager) map[string]string {
	return map[string]string{"watched-by": string(manager)}
}

// onlyFrom requires that the event of an object came from one runtime, for one manager.
func (w *world) onlyFrom(id core.RuntimeID, name string, manager core.Manager) {
	w.t.Helper()
	for _, a := range w.record.Of(name) {
		if a.Runtime != id || a.Manager != manager {
			w.t.Errorf("a change of %s for %s arrived as %+v", id, manager, a)
		}
	}
}

// eventuallyCalls waits until the API server of a runtime has these webhooks.
func (w *world) eventuallyCalls(id core.RuntimeID, want ...string) {
	w.t.Helper()
	slices.Sort(want)
	var have []string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("webhooks of %s: %v, want %v", id, have, want)
		}
	}()
	w.eventually(fmt.Sprintf("%s has the webhooks %v", id, want), func() bool {
		have = nil
		for _, webhook := range w.webhooks(id) {
			have = append(have, strings.TrimSuffix(webhook.Name, ".operator.kyma-project.io"))
		}
		slices.Sort(have)
		return slices.Equal(have, want)
	})
}

func (w *world) webhooks(id core.RuntimeID) []admissionregistrationv1.ValidatingWebhook {
	w.t.Helper()
	var configuration admissionregistrationv1.ValidatingWebhookConfiguration
	err := w.runtimes[id].Client.Get(w.t.Context(), types.NamespacedName{Name: installation.Name}, &configuration)
	if !apierrors.IsNotFound(err) {
		w.must(err)
	}
	return configuration.Webhooks
}

func (w *world) route(name core.Manager) *unstructured.Unstructured {
	route := &unstructured.Unstructured{}
	route.SetGroupVersionKind(schema.GroupVersionKind{
		Group: "networking.istio.io", Version: "v1beta1",
		Kind: "VirtualService",
	})
	route.SetNamespace(rig.Namespace)
	route.SetName(string(name))
	return route
}

// routeLeads returns when there is a route for a manager that is called name.
func (w *world) routeLeads(name, manager core.Manager) {
	w.t.Helper()
	w.eventually("there is a route for "+string(manager), func() bool {
		route := w.route(name)
		err := w.plane.Client.Get(w.t.Context(), client.ObjectKeyFromObject(route), route)
		return err == nil && strings.Contains(fmt.Sprint(route.Object["spec"]), "/v3/"+string(manager)+"/")
	})
}

func (w *world) routeGone(name core.Manager) {
	w.t.Helper()
	w.eventually("the route of "+string(name)+" is gone", func() bool {
		route := w.route(name)
		return apierrors.IsNotFound(w.plane.Client.Get(w.t.Context(), client.ObjectKeyFromObject(route), route))
	})
}

func (w *world) routeComesBack() {
	w.t.Helper()
	w.routeLeads(steady, steady)
	w.routeLeads(moving, moving)
	w.must(w.plane.Client.Delete(w.t.Context(), w.route(moving)))
	w.routeLeads(moving, moving)
}

// watcherEdited changes the labels of a Watcher.
func (w *world) watcherEdited(ids []core.RuntimeID) {
	w.t.Helper()
	w.changeWatcher(moving, func(stored *v1beta2.Watcher) {
		stored.Spec.LabelsToWatch = map[string]v1beta2.LabelValue{"color": "blue"}
	})
	for _, id := range ids {
		w.reaches(id, moving, "blue-"+string(id), map[string]string{"color": "blue"})
		// An event for the old label would arrive before the one for the new label. It must not
		// arrive.
		w.eventually(string(id)+" forgets the old labels", func() bool {
			for _, webhook := range w.webhooks(id) {
				if webhook.ObjectSelector.MatchLabels["watched-by"] == string(moving) {
					return false
				}
			}
			return true
		})
		w.write(id, "old-"+string(id), labels(moving))
		w.reaches(id, moving, "newer-"+string(id), map[string]string{"color": "blue"})
		if w.record.has(rig.Arrival{Runtime: id, Manager: moving, Object: "old-" + string(id)}) {
			w.t.Errorf("%s still reports the old labels", id)
		}
	}
}

// watcherRenamed gives the Watcher another manager in its label. The former one is gone, so the agents
// are replaced.
func (w *world) watcherRenamed(ids []core.RuntimeID) {
	w.t.Helper()
	before := w.pods(ids...)
	for _, id := range ids {
		w.speaksTo(id, moving, true)
	}
	w.changeWatcher(moving, func(stored *v1beta2.Watcher) { stored.Labels[v1beta2.ManagedByLabel] = string(renamed) })
	w.routeLeads(moving, renamed)
	for _, id := range ids {
		w.onlyFrom(id, w.reaches(id, renamed, "renamed-"+string(id), map[string]string{"color": "blue"}), renamed)
	}
	w.eventually("the agents are replaced", func() bool {
		return !slices.ContainsFunc(w.pods(ids...), func(p node.Pod) bool {
			return slices.ContainsFunc(before, func(old node.Pod) bool { return old.Name == p.Name })
		})
	})
	w.settled(ids...)
	for _, id := range ids {
		w.speaksTo(id, renamed, true)
		w.speaksTo(id, moving, false)
	}
}

// speaksTo waits until the fleet has a runtime for a manager, or has it no longer.
func (w *world) speaksTo(id core.RuntimeID, manager core.Manager, want bool) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("the fleet knows that %s speaks to %s: %t", id, manager, want), func() bool {
		return slices.Contains(w.known(id), manager) == want
	})
}

// knows waits until the fleet has exactly these managers for a runtime, sorted.
func (w *world) knows(id core.RuntimeID, want ...core.Manager) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("the fleet knows %s for %v", id, want),
		func() bool { return slices.Equal(w.known(id), want) })
}

func (w *world) known(id core.RuntimeID) (managers []core.Manager) {
	w.fleet.Range(func(s fleet.Status) bool {
		if s.Runtime == id {
			managers = append(managers, s.Manager)
		}
		return true
	})
	slices.Sort(managers)
	return managers
}

func (w *world) pods(ids ...core.RuntimeID) (pods []node.Pod) {
	for _, id := range ids {
		pods = append(pods, w.runtimes[id].node.Pods(w.deployment())...)
	}
	return pods
}

func (w *world) watcherDeleted(ids []core.RuntimeID) {
	w.t.Helper()
	w.must(w.plane.Client.Delete(w.t.Context(), newWatcher(moving, nil)))
	w.routeGone(moving)
	for _, id := range ids {
		w.eventuallyCalls(id, "default.steady", "canary")
		w.reaches(id, steady, "alone-"+string(id), labels(steady))
		w.speaksTo(id, moving, false)
		w.speaksTo(id, renamed, false)
		w.speaksTo(id, steady, true)
	}
}

// runtimeRemoved leaves nothing, neither there nor in the control plane.
func (w *world) runtimeRemoved(id core.RuntimeID) {
	w.t.Helper()
	represented := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: rig.Namespace, Name: string(id)}}
	w.must(w.plane.Client.Delete(w.t.Context(), represented))
	w.eventually(string(id)+" is let go", func() bool {
		return apierrors.IsNotFound(w.plane.Client.Get(w.t.Context(), client.ObjectKeyFromObject(represented), represented))
	})
	// The removal from a namespace of others does not wait for the end of pods and EndpointSlices.
	w.eventually("the agents of "+string(id)+" have ended", func() bool { return len(w.pods(id)) == 0 })
	w.eventually("nothing is left in "+string(id), func() bool { return len(w.left(id)) == 0 })
	w.knows(id)
	for _, suffix := range []string{"-watcher-tls", "-webhook-tls"} {
		name := types.NamespacedName{Namespace: rig.Namespace, Name: string(id) + suffix}
		for _, object := range []client.Object{&certv1.Certificate{}, &corev1.Secret{}} {
			if err := w.plane.Client.Get(w.t.Context(), name, object); !apierrors.IsNotFound(err) {
				w.t.Errorf("%T %s is still there: %v", object, name, err)
			}
		}
	}
}

// left returns all objects of a runtime that are in the agent's namespace or have its name.
func (w *world) left(id core.RuntimeID) []string {
	w.t.Helper()
	return rig.Left(w.t, w.runtimes[id].ControlPlane, func(o *metav1.PartialObjectMetadata) bool {
		return o.Namespace == installation.DefaultNamespace || strings.HasPrefix(o.Name, installation.Name)
	})
}

// rotation replaces the CA while changes flow, without a restart of an agent.
func (w *world) rotation(ids ...core.RuntimeID) {
	w.t.Helper()
	before := w.pods(ids...)
	issuer := &certv1.Issuer{ObjectMeta: metav1.ObjectMeta{Namespace: rig.Namespace, Name: w.set.ClientsIssuer().Name}}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"now"}}}`, certificates.AnnotationRotate)
	w.must(w.plane.Client.Patch(w.t.Context(), issuer, client.RawPatch(types.MergePatchType, patch)))
	var message string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("rotation: %s", message)
		}
	}()
	w.eventually("the second CA signs everything", func() bool {
		w.must(w.plane.Client.Get(w.t.Context(), client.ObjectKeyFromObject(issuer), issuer))
		message = issuer.Annotations[certificates.AnnotationRotation]
		return message == "CA 2 signs everything"
	})
	for _, id := range ids {
		w.reaches(id, steady, "rotated-"+string(id), labels(steady))
	}
	if after := w.pods(ids...); !slices.EqualFunc(before, after, sameProcess) {
		w.t.Errorf("the rotation made of the agents %+v: %+v", before, after)
	}
}

// sameProcess ignores readiness, because a probe may be late on a busy machine.
func sameProcess(a, b node.Pod) bool {
	return a.Name == b.Name && a.Pid == b.Pid && a.Restarts == b.Restarts
}
