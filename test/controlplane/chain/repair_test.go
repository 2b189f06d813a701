package chain

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

var repairs = flag.Int("repairs", 0, "measure that many repairs with the default intervals of the agent")

// TestRepair removes objects of the agent. The next look by time is an hour away, so the fleet must
// ask for one.
func TestRepair(t *testing.T) {
	settings := soon()
	settings["CANARY_INTERVAL"] = "1s"
	w := newDamagedWorld(t, settings)
	w.repaired(&admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: installation.Name},
	}, patience)
	w.repaired(&appsv1.Deployment{ObjectMeta: w.meta("")}, patience)
	// A look that reads three objects finds nothing.
	w.repaired(&rbacv1.Role{ObjectMeta: w.meta("-canary")}, patience)
}

// TestRepairTime measures the time from the removal of a webhook configuration to the new one, with
// the default settings.
func TestRepairTime(t *testing.T) {
	if *repairs == 0 {
		t.Skip("measures for minutes: -repairs 10")
	}
	w := newDamagedWorld(t, nil)
	for n := range *repairs {
		w.pause(rand.N(30 * time.Second)) // The canary writes and heartbeats come every 30 s.
		took := w.repaired(&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: installation.Name},
		}, 3*time.Minute)
		t.Logf("repair %d: %.1f s", n+1, took.Seconds())
	}
}

const damaged = core.RuntimeID("runtime-1")

// newDamagedWorld has one runtime, which is fresh.
func newDamagedWorld(t *testing.T, settings map[string]string) *world {
	t.Helper()
	w := startWorld(t, &world{
		settings: settings, interval: time.Hour,
	}, []core.Manager{steady}, damaged)
	w.must(w.plane.Client.Create(t.Context(), manifests.Object(t, istioGateway)))
	w.must(w.plane.Client.Create(t.Context(), newWatcher(steady, nil)))
	w.represent(damaged)
	w.installed(damaged)
	w.settled(damaged)
	w.fresh()
	return w
}

// meta names an object of the agent by its suffix.
func (w *world) meta(suffix string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: installation.DefaultNamespace, Name: installation.Name + suffix}
}

func (w *world) fresh() {
	w.t.Helper()
	rig.Eventually(w.t, patience, "the runtime is fresh", func() bool {
		return w.fleet.Get(damaged, steady).State == fleet.Fresh
	})
}

func (w *world) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.t.Context().Done():
	}
}

// repaired removes an object and returns the time until another one is there. The runtime is fresh
// before and after that.
func (w *world) repaired(object client.Object, within time.Duration) time.Duration {
	w.t.Helper()
	in, key := w.runtimes[damaged].Client, client.ObjectKeyFromObject(object)
	w.must(in.Get(w.t.Context(), key, object))
	former, begun := object.GetUID(), time.Now()
	w.must(in.Delete(w.t.Context(), object))
	rig.Eventually(w.t, within, "there is another "+key.Name, func() bool {
		return in.Get(w.t.Context(), key, object) == nil && object.GetUID() != former
	})
	took := time.Since(begun)
	w.fresh()
	return took
}
