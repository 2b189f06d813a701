// Package reaction measures the time from a write in a runtime to the reconcile of an operator, and how
// often the reconcile reads the object as it was before.
package reaction

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

var writes = flag.Int("writes", 500, "writes with each source")

const manager core.Manager = "kyma"

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// read is one reconcile: its start, and the state that it read.
type read struct {
	at    time.Time
	state int
}

// TestCommitToReconcile measures each source, until a reconcile that reads the write. The moment of the commit is
// between the request and the answer of a write, so both are given.
func TestCommitToReconcile(t *testing.T) {
	runtime := lab.SharedAPIServer(t, apiserver.Options{})
	pki := lab.NewPKI(t)
	for _, row := range []struct {
		name    string
		env     map[string]string
		checks  bool          // reconciles call Source.Client
		p50, to time.Duration // limits of the median and of p99
	}{
		{"webhook", map[string]string{"CONTROL_PLANE_CONTRACT": "v3"}, true, 15 * time.Millisecond, 40 * time.Millisecond},
		{"webhook, no Source.Client", map[string]string{"CONTROL_PLANE_CONTRACT": "v3"}, false, 110 * time.Millisecond, 150 * time.Millisecond},
		{"webhook, contract v2", map[string]string{"CONTROL_PLANE_CONTRACT": "v2"}, true, 110 * time.Millisecond, 150 * time.Millisecond},
		{"webhook without settle time", map[string]string{"CONTROL_PLANE_CONTRACT": "v3", "SETTLE": "0s"}, false, 10 * time.Millisecond, 50 * time.Millisecond},
		{"informer", map[string]string{"CONTROL_PLANE_CONTRACT": "v3", "SOURCE": "informer"}, false, 10 * time.Millisecond, 50 * time.Millisecond},
	} {
		t.Run(row.name, func(t *testing.T) {
			fromRequest, fromAnswer, stale := measure(t, runtime, pki, row.env, row.checks)
			t.Logf("%d writes: p50 %v, p99 %v after the request, p50 %v, p99 %v after the answer, %d reads before the commit", *writes,
				fromRequest.At(50), fromRequest.At(99), fromAnswer.At(50), fromAnswer.At(99), stale)
			if fromRequest.At(50) > row.p50 || fromRequest.At(99) > row.to {
				t.Errorf("want p50 %v, and p99 %v", row.p50, row.to)
			}
			unsettled := row.env["SETTLE"] != ""
			if !row.checks && stale > 0 != unsettled {
				t.Errorf("%d reconciles read the object as it was before, want that without a settle time only", stale)
			}
			if most := *writes / 5; row.checks && stale > most {
				t.Errorf("%d reconciles for %d writes were too early, want at most %d", stale, *writes, most)
			}
		})
	}
}

func measure(
	t *testing.T, runtime *apiserver.ControlPlane, pki *lab.PKI, env map[string]string, checks bool,
) (fromRequest, fromAnswer kit.Delays, stale int) {
	t.Helper()
	reads := make(chan read, 100)
	var plane *lab.Plane
	plane = lab.StartPlane(t, pki, lab.PlaneOptions{Reconcile: func(ctx context.Context, look lab.Look) (reconcile.Result, error) {
		began := time.Now()
		object := corev1.ConfigMap{}
		if look.Object.Name == "" {
			return reconcile.Result{}, nil // A resync.
		}
		there := runtime.Client
		if checks {
			there = plane.Client(look, there)
		}
		err := there.Get(ctx, look.Object, &object)
		n, _ := strconv.Atoi(object.Data["n"]) // Before the first write there is none.
		reads <- read{began, n}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}}, manager)
	scene := fmt.Sprintf("reaction-%d", time.Now().UnixNano())
	kit.WatchConfigMaps(t, runtime, pki, manager, plane.Addr, scene, env)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: scene, Labels: map[string]string{"scene": scene},
	}}
	lab.NoError(t, runtime.Client.Create(t.Context(), object))
	<-reads
	for n := 1; n <= *writes; n++ {
		object.Data = map[string]string{"n": strconv.Itoa(n)}
		asked := time.Now()
		lab.NoError(t, runtime.Client.Update(t.Context(), object))
		answered := time.Now()
		got := <-reads
		for ; got.state < n && checks; got = <-reads {
			stale++
		}
		fromRequest, fromAnswer = append(fromRequest, got.at.Sub(asked)), append(fromAnswer, max(0, got.at.Sub(answered)))
		if got.state < n {
			stale++
		}
	}
	return kit.Sorted(fromRequest), kit.Sorted(fromAnswer), stale
}
