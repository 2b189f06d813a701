package states

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// TestCommitToReconcile measures the time from a committed write to the start of the reconcile.
// The moment of the commit is between request and answer of the write, so both are given. Writes
// come 25 a second, and do not wait for the reconcile of the one before.
func TestCommitToReconcile(t *testing.T) {
	runtime := lab.SharedAPIServer(t, apiserver.Options{})
	pki := lab.NewPKI(t)

	s := &subject{name: "reaction"}
	s.plane = lab.StartPlane(t, pki, lab.PlaneOptions{}, manager)
	s.agent = lab.StartAgent(t, pki.RuntimeVolume(s.label(), s.label()+".example.com"), s.plane.Addr,
		lab.AgentOptions{Env: map[string]string{"KCP_CONTRACT": "v3"}})
	lab.Register(t, runtime, s.label(), s.agent.WebhookPort, pki.CA.PEM(), admission.ConfigurationOptions{}, s.watch())
	lab.AwaitReviews(t, runtime, s.agent, s.labels())

	asked, answered := s.writeAtPace(t, runtime, *rounds/2)

	var sinceRequest, sinceAnswer []time.Duration
	for i := range asked {
		look := lab.Look{
			Runtime: core.RuntimeID(s.label()), Object: types.NamespacedName{
				Namespace: metav1.NamespaceDefault,
				Name:      fmt.Sprintf("%s-%d", s.label(), i),
			},
		}
		lab.Eventually(t, 10*time.Second, look.Object.Name+" is reconciled",
			func() bool { return len(s.plane.Started(look)) > 0 })

		started := s.plane.Started(look)[0]
		sinceRequest = append(sinceRequest, started.Sub(asked[i]))
		sinceAnswer = append(sinceAnswer, started.Sub(answered[i]))
	}

	t.Logf("from the request to write to the start of the reconcile: p50 %v, p99 %v; from the answer: p50 %v, "+
		"p99 %v; of these, %v are the settle time",
		round(quantile(sinceRequest, 0.5)), round(quantile(sinceRequest, 0.99)),
		round(quantile(sinceAnswer, 0.5)), round(quantile(sinceAnswer, 0.99)), outbox.DefaultSettle)
	for _, bound := range []struct {
		q           float64
		goal, noise time.Duration
	}{{0.5, 10 * time.Millisecond, 100 * time.Millisecond}, {0.99, 50 * time.Millisecond, time.Second}} {
		limit := outbox.DefaultSettle + bound.goal
		if !*strict {
			limit += bound.noise // The machine may be busy. A wait for a poll or a heartbeat would take longer.
		}

		// The request is before the commit, so a time from the request within the bound also proves
		// the time from the commit.
		if have := quantile(sinceRequest, bound.q); have > limit {
			t.Errorf("p%v is %v, want at most %v", 100*bound.q, have, limit)
		}
	}
}

// writeAtPace creates n objects, and returns when each was asked for, and when the answer was
// there.
func (s *subject) writeAtPace(t *testing.T, runtime *apiserver.ControlPlane, n int) (asked, answered []time.Time) {
	t.Helper()
	pace := time.NewTicker(40 * time.Millisecond)
	defer pace.Stop()
	for i := range n {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", s.label(), i), Namespace: metav1.NamespaceDefault, Labels: s.labels(),
		}}

		asked = append(asked, time.Now())
		if err := runtime.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}

		answered = append(answered, time.Now())

		<-pace.C
	}
	return asked, answered
}
