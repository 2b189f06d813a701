package states

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// An API server calls all validating webhooks at once, and commits when the slowest has answered. With the
// default settings, on every contract, an operator sees each write in the end, however late its commit is
// within the longest timeout of a webhook, and soon where the delay is short.
func TestLateCommitsAreSeen(t *testing.T) {
	delays := []time.Duration{300 * time.Millisecond, 2 * time.Second, 10 * time.Second, 29 * time.Second}
	if testing.Short() {
		delays = delays[:2]
	}

	runtime := lab.SharedAPIServer(t, apiserver.Options{})
	pki := lab.NewPKI(t)
	scenes := make([]*lateScene, 0, len(contract.Versions()))

	for _, version := range contract.Versions() {
		s := newLateScene(t, runtime, pki, version)
		for _, delay := range delays {
			s.prepare(t, delay)
		}

		scenes = append(scenes, s)
	}

	for _, delay := range delays {
		lab.RegisterSlowWebhook(t, runtime, pki, delay)
	}

	var writing sync.WaitGroup

	for _, s := range scenes {
		for i := range s.writes {
			writing.Go(func() { s.write(t, &s.writes[i]) })
		}
	}

	writing.Wait()

	for _, s := range scenes {
		s.awaitLooks(t)
		s.report(t)
	}
}

// lateScene is an agent with default settings that speaks one contract, and an operator that notes the
// state of each object at its last look.
type lateScene struct {
	runtime *apiserver.ControlPlane
	version contract.Version
	writes  []lateWrite

	mu         sync.Mutex
	seen       map[string]string // the state at the last look, by name
	since      map[string]time.Time
	deliveries map[string]int
}

// lateWrite is one write beside a slow webhook.
type lateWrite struct {
	name, operation string
	delay           time.Duration

	committed time.Time
	began     time.Time
}

const (
	absent, before, after  = "absent", "before", "after"
	create, change, remove = "create", "change", "delete"
	writesEach             = 7 // of each operation: 21 for each contract and delay
)

func newLateScene(t *testing.T, runtime *apiserver.ControlPlane, pki *lab.PKI, version contract.Version) *lateScene {
	t.Helper()

	s := &lateScene{
		runtime: runtime, version: version,
		seen: make(map[string]string), since: make(map[string]time.Time), deliveries: make(map[string]int),
	}
	plane := lab.StartPlane(t, pki, lab.PlaneOptions{Delivered: s.delivered, Reconcile: s.reconcile}, manager)
	agent := lab.StartAgent(t, pki.RuntimeVolume("late-"+string(version), string(version)+".example.com"), plane.Addr,
		lab.AgentOptions{Env: map[string]string{
			"KCP_CONTRACT": string(version), "RESEND_AFTER": "", // Unset: the default.
		}})

	lab.Register(t, runtime, "late-"+string(version), agent.WebhookPort, pki.CA.PEM(), admission.ConfigurationOptions{}, watch.Watch{
		Name:     types.NamespacedName{Namespace: "late", Name: string(version)},
		Manager:  manager,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Selector: watch.Selector{Labels: map[string]string{"contract": string(version)}},
	})
	lab.AwaitReviews(t, runtime, agent, map[string]string{"contract": string(version)})

	return s
}

// prepare plans the writes for a delay, and creates the objects that they change and delete.
func (s *lateScene) prepare(t *testing.T, delay time.Duration) {
	t.Helper()

	for _, operation := range []string{create, change, remove} {
		for i := range writesEach {
			w := lateWrite{name: fmt.Sprintf("%s-%s-%s-%d", s.version, operation, delay, i), operation: operation, delay: delay}
			s.writes = append(s.writes, w)

			if operation == create {
				continue
			}

			if err := s.runtime.Client.Create(t.Context(), s.object(&w, before)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (s *lateScene) object(w *lateWrite, state string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: strings.ToLower(w.name),
			Labels:      map[string]string{"contract": string(s.version), "delay": w.delay.String()},
			Annotations: map[string]string{core.OwnerAnnotation: "kcp-system/late"},
		},
		Data: map[string]string{"state": state},
	}
}

func (s *lateScene) write(t *testing.T, w *lateWrite) {
	t.Helper()

	ctx, object := t.Context(), s.object(w, after)
	w.began = time.Now()

	var err error

	switch w.operation {
	case create:
		err = s.runtime.Client.Create(ctx, object)
	case change:
		err = s.runtime.Client.Update(ctx, object)
	default:
		err = s.runtime.Client.Delete(ctx, object)
	}

	if w.committed = time.Now(); err != nil || w.committed.Sub(w.began) < w.delay {
		t.Errorf("%s took %v, want more than %v: %v", w.name, w.committed.Sub(w.began), w.delay, err)
	}
}

func (s *lateScene) delivered(d core.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.deliveries[d.Event.Watched.Name]++
}

func (s *lateScene) reconcile(ctx context.Context, look lab.Look) (reconcile.Result, error) {
	if look.Object.Name == "" {
		return reconcile.Result{}, nil // This test does not count resyncs.
	}

	var have corev1.ConfigMap

	err := s.runtime.Client.Get(ctx, look.Object, &have)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}

	state := have.Data["state"]
	if apierrors.IsNotFound(err) {
		state = absent
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.seen[look.Object.Name] != state {
		s.seen[look.Object.Name], s.since[look.Object.Name] = state, time.Now()
	}

	return reconcile.Result{}, nil
}

// awaitLooks waits until every write was looked at after its commit, or until the last resend is long over.
func (s *lateScene) awaitLooks(t *testing.T) {
	t.Helper()

	deadline := s.writes[0].began.Add(55 * time.Second)
	ticker := time.NewTicker(100 * time.Millisecond)

	defer ticker.Stop()

	for len(s.stale()) > 0 && time.Now().Before(deadline) {
		<-ticker.C
	}
}

// stale returns the writes after which the last look at the object read the state before.
func (s *lateScene) stale() (stale []string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for i := range s.writes {
		w := &s.writes[i]

		want := after
		if w.operation == remove {
			want = absent
		}

		if s.seen[strings.ToLower(w.name)] != want {
			stale = append(stale, w.name)
		}
	}

	return stale
}

func (s *lateScene) report(t *testing.T) {
	t.Helper()

	if stale := s.stale(); len(stale) > 0 {
		t.Errorf("%s: %d of %d results are of the object before the write: %v", s.version, len(stale), len(s.writes), stale)
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	latest := make(map[time.Duration]time.Duration)

	for i := range s.writes {
		w := &s.writes[i]
		name := strings.ToLower(w.name)
		latest[w.delay] = max(latest[w.delay], s.since[name].Sub(w.committed))

		// The write itself, two resends, and as many for the event that created the object.
		if n := s.deliveries[name]; n > 6 {
			t.Errorf("%s was delivered %d times, want at most three times for each write", w.name, n)
		}
	}

	for delay, took := range latest {
		t.Logf("%s, a webhook of %v: seen at most %v after the commit", s.version, delay, took.Round(time.Millisecond))

		// The first resend comes 3 s after the review. The rest is for a busy machine.
		if delay <= 2*time.Second && took > 8*time.Second {
			t.Errorf("%s: seen %v after the commit, want it soon beside a webhook of %v", s.version, took, delay)
		}
	}
}
