package chain

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
)

// Events for steady flow all the time. The Watcher of moving gets another manager beside it.
const (
	steady  = core.Manager("my-operator")
	moving  = core.Manager("moving")
	renamed = core.Manager("renamed")
	// unwatched is a manager that no Watcher names, and for which one event has arrived.
	unwatched = core.Manager("unwatched")

	stays = core.RuntimeID("runtime-1")
	goes  = core.RuntimeID("runtime-2")
)

func newWatcher(manager core.Manager) *v1beta2.Watcher {
	return &v1beta2.Watcher{
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

// TestChain runs a control plane with two runtimes, in which nothing is due by time within an hour.
// One has changes all the time, and none may be lost.
func TestChain(t *testing.T) {
	settings := map[string]string{"HEARTBEAT_INTERVAL": "1s", "SETTLE": "10ms", "CANARY_INTERVAL": "1s"}
	w := newWorld(t, settings, []core.Manager{steady, moving, renamed}, stays, goes)
	w.must(w.plane.Client.Create(t.Context(), newWatcher(moving)))
	for _, id := range []core.RuntimeID{stays, goes} {
		w.eventuallyCalls(id, "default.moving", "default."+string(steady), "canary")
		w.onlyFrom(id, w.reaches(id, moving, "first-"+string(id), labels(moving)), moving)
		w.reaches(id, steady, "steady-"+string(id), labels(steady))
	}
	w.repaired(&admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: installation.Name},
	}, patience)
	w.repaired(&appsv1.Deployment{ObjectMeta: meta("")}, patience)
	// A reconcile that reads three objects finds nothing.
	w.repaired(&rbacv1.Role{ObjectMeta: meta("-canary")}, patience)
	w.settled(stays)
	speaks := core.NewBatch(core.WatchEvent{})
	speaks.Heartbeat = &core.Heartbeat{Interval: time.Hour} // The next one is not due here.
	w.fleet.Observe(core.Peer{ID: stays}, unwatched, speaks, nil)
	flow := rig.StartFlow(t, &w.record.Arrivals, stays, steady, 100*time.Millisecond,
		func(ctx context.Context, name string) error { return w.create(ctx, stays, name, labels(steady)) })
	w.watcherChanges(stays, goes)
	w.runtimeRemoved(goes)
	w.settled(stays)
	w.knows(stays, steady, renamed, unwatched)
	before := flow.Count()
	w.rotation(stays)
	flow.Settle(patience, rig.Window{To: before})
}

// TestRepairTime measures the time from the removal of a webhook configuration to the new one, with
// the default settings.
func TestRepairTime(t *testing.T) {
	if *repairs == 0 {
		t.Skip("measures for minutes: -repairs 10")
	}
	w := newWorld(t, nil, []core.Manager{steady}, stays)
	for n := range *repairs {
		<-time.After(rand.N(30 * time.Second)) // The canary writes and heartbeats come every 30 s.
		took := w.repaired(&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: installation.Name},
		}, 3*time.Minute)
		t.Logf("repair %d: %.1f s", n+1, took.Seconds())
	}
}

var repairs = flag.Int("repairs", 0, "measure that many repairs with the default intervals of the agent")

// meta names an object of the agent by its suffix.
func meta(suffix string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: installation.Name, Name: installation.Name + suffix}
}

// repaired removes an object from the runtime that stays, and returns the time until another one is
// there. The fleet asks for that. The runtime is fresh before and after that.
func (w *world) repaired(object client.Object, within time.Duration) time.Duration {
	w.t.Helper()
	fresh := func() bool { return w.fleet.Get(stays, steady).State == fleet.Fresh }
	w.eventually("the runtime is fresh", fresh)
	in, key := w.runtimes[stays].Client, client.ObjectKeyFromObject(object)
	w.must(in.Get(w.t.Context(), key, object))
	former, begun := object.GetUID(), time.Now()
	w.must(in.Delete(w.t.Context(), object))
	rig.Eventually(w.t, within, "there is another "+key.Name, func() bool {
		return in.Get(w.t.Context(), key, object) == nil && object.GetUID() != former
	})
	took := time.Since(begun)
	w.eventually("the runtime is fresh again", fresh)
	return took
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
		var configuration admissionregistrationv1.ValidatingWebhookConfiguration
		err := w.runtimes[id].Client.Get(w.t.Context(), types.NamespacedName{Name: installation.Name}, &configuration)
		w.must(client.IgnoreNotFound(err))
		have = nil
		for _, webhook := range configuration.Webhooks {
			have = append(have, strings.TrimSuffix(webhook.Name, ".operator.kyma-project.io"))
		}
		slices.Sort(have)
		return slices.Equal(have, want)
	})
}

// watcherChanges gives a Watcher other labels to watch, and another manager in its own label. The
// former manager is gone, so the agents are replaced.
func (w *world) watcherChanges(ids ...core.RuntimeID) {
	w.t.Helper()
	before := w.pods(ids...)
	for _, id := range ids {
		w.speaksTo(id, moving, true)
	}
	w.changeWatcher(moving, func(stored *v1beta2.Watcher) {
		stored.Spec.LabelsToWatch = map[string]v1beta2.LabelValue{"color": "blue"}
		stored.Labels[v1beta2.ManagedByLabel] = string(renamed)
	})
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
	defer func() {
		if w.t.Failed() {
			w.t.Logf("the fleet knows %s for %v", id, w.known(id))
		}
	}()
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
	w.eventually("nothing is left in "+string(id), func() bool {
		return len(rig.Left(w.t, w.runtimes[id].ControlPlane, func(o *metav1.PartialObjectMetadata) bool {
			return o.Namespace == installation.Name || strings.HasPrefix(o.Name, installation.Name)
		})) == 0
	})
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

// rotation replaces the CA while changes flow, without a restart of an agent.
func (w *world) rotation(ids ...core.RuntimeID) {
	w.t.Helper()
	before := w.pods(ids...)
	issuer := &certv1.Issuer{ObjectMeta: metav1.ObjectMeta{Namespace: rig.Namespace, Name: "watcher-clients"}}
	patch := []byte(`{"metadata":{"annotations":{"operator.kyma-project.io/rotate-ca":"now"}}}`)
	w.must(w.plane.Client.Patch(w.t.Context(), issuer, client.RawPatch(types.MergePatchType, patch)))
	var message string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("rotation: %s", message)
		}
	}()
	w.eventually("the second CA signs everything", func() bool {
		w.must(w.plane.Client.Get(w.t.Context(), client.ObjectKeyFromObject(issuer), issuer))
		message = issuer.Annotations["operator.kyma-project.io/rotation"]
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
