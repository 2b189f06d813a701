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

	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestReconcileSeesTheChange counts reconciles that read the object as it was before the write.
// Without a settle time there are some: the event leaves before the write is committed. With the
// default settle time there are none.
func TestReconcileSeesTheChange(t *testing.T) {
	const writes = 100
	for _, test := range []struct {
		settle      string
		least, most int // stale reads
	}{{"0s", 1, writes}, {"100ms", 0, 0}} {
		t.Run("settle "+test.settle, func(t *testing.T) {
			stale := countStaleReads(t, writes, test.settle)
			t.Logf("settle %s: %d of %d reconciles read the object as it was before the write", test.settle, stale,
				writes)
			if stale < test.least || stale > test.most {
				t.Errorf("%d stale reads, want %d to %d", stale, test.least, test.most)
			}
		})
	}
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
		if err := s.runtime.Client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "counter"},
			&object); err != nil {
			return // Before the first commit there is none.
		}

		n, _ := strconv.Atoi(object.Data["n"])
		read <- n
	}

	s = newSceneWith(t, contract.V2, lab.OperatorOptions{Reconcile: reader},
		map[string]string{"SETTLE": settle, "RESEND_RESYNC": "0s"})

	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "counter", Namespace: metav1.NamespaceDefault, Labels: watched()},
		Data:       map[string]string{"n": "0"},
	}

	if err := s.runtime.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}

	// The reconciles of the agent's start and of the creation must be over.
	lab.Eventually(t, 10*time.Second, "the first reconciles", func() bool { return off.Load() >= 2 })
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
