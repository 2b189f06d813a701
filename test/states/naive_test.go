package states

import (
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// naive is an agent that sends from inside admission.
type naive struct {
	subject

	port int

	mu   sync.Mutex
	took []time.Duration
}

// checkNaive makes sure that an agent which is not as it should be is found out.
func checkNaive(t *testing.T, runtime *controlplane.ControlPlane, pki *rig.PKI, up measurement) {
	t.Helper()

	for _, fault := range []rig.Fault{rig.Unavailable, rig.Refusing, rig.Hanging, rig.Slow} {
		n := &naive{subject: subject{name: "naive " + string(fault), fault: fault}}
		n.start(t, runtime, pki)

		for round := range 3 {
			n.write(t, runtime, round)
		}

		found := problems(n.measure(t, runtime), up, theLimits())
		t.Logf("an agent that sends from inside admission, %s: %q", fault, found)

		if len(found) == 0 {
			t.Errorf("%s: an agent that sends from inside admission passes the check", n.name)
		}
	}
}

func (n *naive) start(t *testing.T, runtime *controlplane.ControlPlane, pki *rig.PKI) {
	t.Helper()

	n.plane = rig.StartPlane(t, pki, rig.PlaneOptions{}, manager)
	n.plane.Set(n.fault)

	n.port = rig.StartNaive(t, pki.RuntimeVolume(n.label(), n.label()+".example.com"), n.plane.Addr, n.reviewed)
	// The API server shall lose its patience soon.
	rig.Register(t, runtime, n.label(), n.port, pki.CA.PEM(), admission.ConfigurationOptions{Timeout: time.Second}, n.watch())
	n.awaitReviews(t, runtime)
	n.before = measurement{}.ask(rig.ScrapeAPIServer(t, runtime), n.webhookLabel())
}

// awaitReviews makes dry-run writes until the API server asks about them, and forgets these.
func (n *naive) awaitReviews(t *testing.T, runtime *controlplane.ControlPlane) {
	t.Helper()

	rig.Eventually(t, 30*time.Second, "the API server calls "+n.name, func() bool {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			GenerateName: "probe-", Namespace: metav1.NamespaceDefault, Labels: n.labels(),
		}}
		if err := runtime.Client.Create(t.Context(), probe, client.DryRunAll); err != nil {
			t.Fatal(err)
		}

		n.mu.Lock()
		defer n.mu.Unlock()

		called := len(n.took) > 0
		n.took = nil

		return called
	})
}

func (n *naive) reviewed(_ core.Manager, _ string, took time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.took = append(n.took, took)
}

// measure waits for answers that nobody waits for any more.
func (n *naive) measure(t *testing.T, runtime *controlplane.ControlPlane) measurement {
	t.Helper()

	m := measurement{writes: n.writes, errors: n.errors}.ask(rig.ScrapeAPIServer(t, runtime), n.webhookLabel())

	n.plane.Set(rig.Refusing)
	n.plane.Set(rig.Up)
	rig.Eventually(t, time.Minute, n.name+": every review has come to its end", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()

		return len(n.took) >= len(n.writes)
	})

	n.mu.Lock()
	defer n.mu.Unlock()

	m.agent = exactly(n.took)

	return m.minus(n.before)
}

// exactly returns a histogram with a bucket for each observation.
func exactly(all []time.Duration) (h rig.Histogram) {
	for i, d := range slices.Sorted(slices.Values(all)) {
		h.Upper = append(h.Upper, d.Seconds())
		h.Counts = append(h.Counts, float64(i+1))
		h.Sum += d.Seconds()
	}

	h.Count = float64(len(all))

	return h
}
