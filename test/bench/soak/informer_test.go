package soak

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

var objects = flag.Int("objects", 500, "number of objects of 10 kB for TestInformerMemory")

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// TestInformerMemory measures the peak resident memory of an agent that lists and watches objects of
// 10 kB, and then sees each of them change.
func TestInformerMemory(t *testing.T) {
	const limit = 64 << 20
	plane := lab.SharedAPIServer(t, apiserver.Options{})
	each := func(do func(object *corev1.ConfigMap) error) {
		var work sync.WaitGroup
		for worker := range 16 {
			work.Go(func() {
				for n := worker; n < *objects; n += 16 {
					if err := do(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
						Namespace: "default", Name: "memory-" + strconv.Itoa(n), Labels: map[string]string{"scene": "memory"},
					}, Data: map[string]string{"data": strings.Repeat("0123456789", 1_000)}}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		work.Wait()
	}
	each(func(o *corev1.ConfigMap) error { return plane.Client.Create(t.Context(), o) })
	for _, watchList := range []string{"false", "true"} { // Older API servers know lists only.
		t.Run("WatchList "+watchList, func(t *testing.T) {
			pki := lab.NewPKI(t)
			control := lab.StartPlane(t, pki, lab.PlaneOptions{}, manager)
			env := map[string]string{"KUBE_FEATURE_WatchListClient": watchList, "WATCHERS": fmt.Sprintf("kind: Watcher\n"+
				"metadata: {name: memory}\nspec:\n  manager: %s\n  labelsToWatch: {scene: memory}\n"+
				"  resourceToWatch: {group: \"\", version: \"*\", resource: configmaps}\n", manager)}
			lab.GrantWatch(t, plane, "memory-"+watchList, env, rbacv1.PolicyRule{
				APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"},
			})
			agent := lab.StartAgent(t, pki.RuntimeVolume(runtime, lab.RuntimeDomain(runtime)), control.Addr,
				lab.AgentOptions{Env: env})
			each(func(o *corev1.ConfigMap) error {
				return plane.Client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType,
					[]byte(`{"data":{"changed":"`+watchList+`"}}`)))
			})
			lab.Eventually(t, 2*time.Minute, "all changes are observed", func() bool {
				return agent.Metric("runtime_watcher_agent_informer_changes_total") >= float64(*objects)
			})
			_, peak := (&watched{t: t, agent: agent}).used()
			t.Logf("%d objects listed and changed: %.0f MiB at the peak", *objects, peak)
			if peak > limit>>20 {
				t.Errorf("%.0f MiB at the peak, want at most %d", peak, limit>>20)
			}
		})
	}
}
