package e2e

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// insideAdmission stands for no settle time at all: the API server, and with it the commit, waits until the event is sent.
const insideAdmission = "inside admission"

// TestReconcileSeesTheChange shows the trap first: an event that leaves from inside admission brings the operator to the
// object before the write is committed. Then it shows that the settle time avoids it.
func TestReconcileSeesTheChange(t *testing.T) {
	const writes = 300

	for _, test := range []struct {
		settle      string
		least, most int // stale reads
	}{
		{insideAdmission, writes / 10, writes},
		{"0s", 1, writes},
		{"100ms", 0, 0},
	} {
		t.Run("settle "+test.settle, func(t *testing.T) {
			stale := countStaleReads(t, writes, test.settle)
			t.Logf("settle %s: %d of %d reconciles read the object as it was before the write", test.settle, stale, writes)

			if stale < test.least || stale > test.most {
				t.Errorf("%d stale reads, want %d to %d", stale, test.least, test.most)
			}
		})
	}
}

// newNaiveScene has an agent that sends from inside admission.
func newNaiveScene(t *testing.T, operator rig.OperatorOptions) *scene {
	t.Helper()

	s := newClusters(t, operator)

	var reviews atomic.Int64

	port := rig.StartNaive(t, s.pki.RuntimeVolume(runtime, domain), s.operatorOptions.Addr,
		func(core.Manager, string, time.Duration) { reviews.Add(1) })
	rig.Register(t, s.runtime, manager, port, s.pki.CA.PEM(), admission.ConfigurationOptions{}, watchedConfigMaps())
	rig.Eventually(t, 30*time.Second, "the API server calls the webhook", func() bool {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			GenerateName: "probe-", Namespace: metav1.NamespaceDefault, Labels: watched(),
		}}
		if err := s.runtime.Client.Create(t.Context(), probe, client.DryRunAll); err != nil {
			t.Fatal(err)
		}

		return reviews.Load() > 0
	})

	return s
}

// firstLooks is how many reconciles the start of an agent and the creation of an object lead to.
func (s *scene) firstLooks() int64 {
	if s.agent == nil {
		return 1 // Who sends from inside admission asks for nothing when it starts.
	}

	return 2
}

func countStaleReads(t *testing.T, writes int, settle string) (stale int) {
	t.Helper()

	var (
		s    *scene
		read = make(chan int, 1000)
		on   atomic.Bool
		off  atomic.Int64 // reconciles before the first write that counts
	)

	reader := func(ctx context.Context, _ types.NamespacedName) {
		if !on.Load() {
			off.Add(1)

			return
		}

		var object corev1.ConfigMap
		if err := s.runtime.Client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "counter"}, &object); err != nil {
			return // Before the first commit there is none.
		}

		n, _ := strconv.Atoi(object.Data["n"])
		read <- n
	}

	if settle == insideAdmission {
		s = newNaiveScene(t, rig.OperatorOptions{Reconcile: reader})
	} else {
		s = newSceneWith(t, contract.V2, rig.OperatorOptions{Reconcile: reader}, map[string]string{"SETTLE": settle, "RESYNC_AGAIN": "0s"})
	}

	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "counter", Namespace: metav1.NamespaceDefault, Labels: watched()},
		Data:       map[string]string{"n": "0"},
	}

	if err := s.runtime.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}

	// Those of the agent's start and of the creation must be over.
	rig.Eventually(t, 10*time.Second, "the first reconciles", func() bool { return off.Load() >= s.firstLooks() })
	on.Store(true)

	for n := 1; n <= writes; n++ {
		object.Data["n"] = strconv.Itoa(n)
		if err := s.runtime.Client.Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}

		select {
		case got := <-read:
			if got < n {
				stale++
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("write %d led to no reconcile", n)
		}
	}

	return stale
}
