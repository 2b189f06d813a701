package installation

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/core"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// rival is one of two operators with the same objects.
type rival struct {
	ready, refused atomic.Int64 // reports
	overview       runtimes.Overview
}

// TestTwoOperators runs two operators on one fleet. Both would install into the same namespace.
func TestTwoOperators(t *testing.T) {
	plane := startPlane(t)
	create(t, plane, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: installation.DefaultNamespace}})
	create(t, plane, newWatcher("first"))
	represent(t, plane, "runtime-1", read(t, plane.Kubeconfig))

	first := startRival(t, plane, "first")
	agentAnswers(t, plane)
	rig.Eventually(t, patience, "the first one is ready", func() bool { return first.ready.Load() > 0 })

	left := &world{t: t, namespace: installation.DefaultNamespace, client: plane.Client}
	before := left.left()
	second := startRival(t, plane, "second")

	rig.Eventually(t, patience, "the second one is refused", func() bool { return second.refused.Load() > 0 })

	looks := first.ready.Load()
	rig.Eventually(t, patience, "both have looked again", func() bool {
		return first.ready.Load() > looks+2 && second.refused.Load() > 2
	})

	if diff := cmp.Diff(before, left.left()); diff != "" {
		t.Errorf("the objects in the runtime (-before +after):\n%s", diff)
	}

	if n := second.ready.Load(); n > 0 {
		t.Errorf("the second one was ready %d times", n)
	}

	for state, n := range second.overview.Installations().Runtimes {
		if state.Reason != "InstallerRefused" {
			t.Errorf("overview of the second one: %d runtimes are %v", n, state)
		}
	}
}

func startRival(t *testing.T, plane *apiserver.ControlPlane, name string) *rival {
	t.Helper()

	mgr := newManager(t, plane)

	installer, err := installation.New("agent.example.com/agent:"+name, name+".example.com:443",
		installation.Options{NoCanary: true})
	if err != nil {
		t.Fatal(err)
	}

	identify := func(_ context.Context, object client.Object) (runtimes.Identity, error) {
		domain := object.GetAnnotations()["skr-domain"]
		if domain == "" {
			return runtimes.Identity{}, nil
		}

		return runtimes.Identity{ID: core.RuntimeID(object.GetName()), Domain: domain}, nil
	}
	kubeconfigs := runtimes.NewKubeconfigs(mgr.GetAPIReader(), "config", client.ObjectKeyFromObject,
		runtimes.KubeconfigOptions{})
	issuer := &issuer{t: t, asked: map[core.RuntimeID]int{}, secrets: map[core.RuntimeID]map[string][]byte{}}
	r := &rival{}

	if err := runtimes.SetUp(mgr, &corev1.ConfigMap{}, identify, kubeconfigs.Connect, issuer, installer, runtimes.Options{
		Name: name, Finalizer: "example.com/" + name, Retry: 100 * time.Millisecond, Interval: 200 * time.Millisecond,
		Overview: &r.overview, Report: r.report,
	}); err != nil {
		t.Fatal(err)
	}

	rig.Run(t, "manager", mgr.Start)

	return r
}

func (r *rival) report(_ context.Context, _ client.Object, status installation.Status) error {
	switch {
	case status.State == installation.Ready:
		r.ready.Add(1)
	case status.Reason == "InstallerRefused":
		r.refused.Add(1)
	}

	return nil
}
