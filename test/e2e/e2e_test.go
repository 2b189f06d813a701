// Package e2e runs the real agent between real API servers and a real operator.
package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

const (
	manager = "kyma"
	runtime = "runtime-1"
	domain  = "runtime-1.example.com"
	reviews = "runtime_watcher_agent_admission_reviews_total"
)

// watched are the labels of the objects that are watched.
func watched() map[string]string { return map[string]string{"watched": "true"} }

// scene is one runtime and its control plane.
type scene struct {
	t               *testing.T
	plane, runtime  *controlplane.ControlPlane
	pki             *rig.PKI
	agent           *rig.Agent
	operator        *rig.Operator
	owner           types.NamespacedName
	operatorOptions rig.OperatorOptions
}

func newScene(t *testing.T, version contract.Version) *scene {
	t.Helper()

	return newSceneWith(t, version, rig.OperatorOptions{}, nil)
}

// newSceneWith is newScene with choices for the operator, and an environment for the agent beyond the usual.
func newSceneWith(t *testing.T, version contract.Version, operator rig.OperatorOptions, env map[string]string) *scene {
	t.Helper()

	s := newClusters(t, operator)
	env = maps.Clone(env)
	if env == nil {
		env = make(map[string]string)
	}

	env["KCP_CONTRACT"], env["LOG_LEVEL"], env["MANAGERS"] = string(version), "debug", manager
	s.agent = rig.StartAgent(t, s.pki.RuntimeVolume(runtime, domain), s.operatorOptions.Addr, rig.AgentOptions{Env: env})

	if !version.NeedsOwner() { // Without one, there is nobody to look at the runtime of an agent that starts.
		s.awaitResyncs(1)
	}

	rig.Watch(t, s.runtime, s.agent, s.pki.CA.PEM(), admission.Watch{
		Name:     types.NamespacedName{Namespace: rig.Namespace, Name: "deployments"},
		Manager:  manager,
		Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
		Labels:   watched(),
	}, watchedConfigMaps())

	return s
}

func watchedConfigMaps() admission.Watch {
	return admission.Watch{
		Name:     types.NamespacedName{Namespace: rig.Namespace, Name: "configmaps"},
		Manager:  manager,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Labels:   watched(),
	}
}

// newClusters is a control plane with its operator, and a runtime without agent.
func newClusters(t *testing.T, operator rig.OperatorOptions) *scene {
	t.Helper()

	if testing.Short() {
		t.Skip("needs real API servers, which -short leaves out")
	}

	s := &scene{t: t, pki: rig.NewPKI(t), operatorOptions: operator}
	s.operatorOptions.Addr = rig.Address(rig.FreePort(t))
	s.plane = controlplane.StartT(t, controlplane.Options{})
	s.runtime = controlplane.StartT(t, controlplane.Options{})
	s.owner = rig.AddRuntime(t, s.plane, runtime, domain)
	rig.AddRuntime(t, s.plane, "runtime-2", "runtime-2.example.com")
	s.startOperator()

	return s
}

func (s *scene) startOperator() {
	s.t.Helper()

	s.operator = rig.StartOperator(s.t, s.plane, s.pki.ServerMaterial(), manager, s.operatorOptions)
}

// deployment returns an object with a spec that asks for so many replicas.
func (s *scene) deployment(name string, replicas int32) *appsv1.Deployment {
	labels := watched()

	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: metav1.NamespaceDefault, Labels: labels,
			Annotations: map[string]string{admission.OwnerAnnotation: s.owner.String()},
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(replicas),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
			},
		},
	}
}

// changes returns which runtime sent each change of an object that reached the operator.
func (s *scene) changes(name string) (senders []core.RuntimeID) {
	for _, d := range s.operator.Deliveries() {
		if d.Event.Kind == core.KindChanged && d.Event.Watched.Name == name {
			senders = append(senders, d.Runtime)
		}
	}

	return senders
}

// step makes a write and waits until the agent has decided on it as wanted.
func (s *scene) step(what, decision string, write func() error) {
	s.t.Helper()

	before := s.agent.Metric(reviews, fmt.Sprintf("decision=%q", decision))

	if err := write(); err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}

	rig.Eventually(s.t, 5*time.Second, what+" is decided: "+decision, func() bool {
		return s.agent.Metric(reviews, fmt.Sprintf("decision=%q", decision)) > before
	})
}

func (s *scene) awaitChanges(name string, n int) {
	s.t.Helper()

	rig.Eventually(s.t, 10*time.Second, fmt.Sprintf("%d changes of %s reached the operator", n, name), func() bool {
		return len(s.changes(name)) >= n
	})
}

func (s *scene) awaitResyncs(n int) {
	s.t.Helper()

	rig.Eventually(s.t, 10*time.Second, fmt.Sprintf("%d resyncs reached the operator", n), func() bool { return s.resyncs() >= n })
}

// resyncs returns how many resyncs reached the operator.
func (s *scene) resyncs() (n int) {
	for _, d := range s.operator.Deliveries() {
		if d.Event.Kind == core.KindResync && d.Runtime == runtime {
			n++
		}
	}

	return n
}

func TestChangeInARuntimeStartsAReconcile(t *testing.T) {
	for _, version := range contract.Versions() {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()

			s := newScene(t, version)
			ctx := t.Context()
			object := s.deployment("demo", 1)

			s.step("create", "accepted", func() error { return s.runtime.Client.Create(ctx, object) })
			s.awaitChanges("demo", 1)

			s.step("spec change", "accepted", func() error {
				object.Spec.Replicas = new(int32(2))

				return s.runtime.Client.Update(ctx, object)
			})
			s.awaitChanges("demo", 2)

			s.step("metadata-only change", "unchanged", func() error {
				object.Annotations["note"] = "nothing to see"

				return s.runtime.Client.Update(ctx, object)
			})

			s.step("dry run", "dry_run", func() error {
				dry := object.DeepCopy()
				dry.Spec.Replicas = new(int32(3))

				return s.runtime.Client.Update(ctx, dry, client.DryRunAll)
			})

			s.step("delete", "accepted", func() error { return s.runtime.Client.Delete(ctx, object) })
			s.awaitChanges("demo", 3)

			if got := s.changes("demo"); !slices.Equal(got, []core.RuntimeID{runtime, runtime, runtime}) {
				t.Errorf("changes from %v, want create, spec change and delete of %s, each once", got, runtime)
			}

			s.checkReconciles()
			s.checkAccounts()

			if got := s.resyncs(); got != 1 {
				t.Errorf("%d resyncs, want one of the agent that has started", got)
			}
		})
	}
}

// checkReconciles makes sure that only the runtime that sent something was reconciled.
func (s *scene) checkReconciles() {
	s.t.Helper()

	reconciles := s.operator.Reconciles()
	if len(reconciles) < 3 {
		s.t.Errorf("%d reconciles, want at least one for each of 3 changes", len(reconciles))
	}

	for _, r := range reconciles {
		if r.Request != s.owner {
			s.t.Errorf("%s was reconciled, want %s only", r.Request, s.owner)
		}
	}
}

// checkAccounts makes sure that every event has one fate, and that none was given up.
func (s *scene) checkAccounts() {
	s.t.Helper()

	const prefix = "runtime_watcher_agent_events_"

	rig.Eventually(s.t, 10*time.Second, "nothing is pending", func() bool { return s.agent.Metric(prefix+"pending") == 0 })

	text := s.agent.Scrape() // All of one moment.
	accepted, delivered := rig.Sum(text, prefix+"accepted_total"), rig.Sum(text, prefix+"delivered_total")
	coalesced, dropped := rig.Sum(text, prefix+"coalesced_total"), rig.Sum(text, prefix+"dropped_total")

	if accepted == 0 || accepted != delivered+coalesced+dropped || dropped != 0 {
		s.t.Errorf("accepted %v, delivered %v, coalesced %v, dropped %v: they must add up, with none dropped",
			accepted, delivered, coalesced, dropped)
	}
}

func TestControlPlaneDownDuringWrites(t *testing.T) {
	const (
		writes = 50
		outage = 10 * time.Second
	)

	s := newScene(t, contract.V2)
	s.operator.Stop()

	started := time.Now()
	pace := time.NewTicker(outage / writes)
	defer pace.Stop()

	var with, without []time.Duration

	for i := range writes {
		with = append(with, s.write(fmt.Sprintf("watched-%d", i), watched()))
		without = append(without, s.write(fmt.Sprintf("unwatched-%d", i), nil))

		<-pace.C
	}

	if down := time.Since(started); down < outage {
		t.Fatalf("the control plane was down for %v only, want %v", down, outage)
	}

	compareWrites(t, with, without)
	s.checkAnswers()
	s.startOperator()

	for i := range writes {
		name := fmt.Sprintf("watched-%d", i)
		rig.Eventually(t, time.Minute, name+" reached the operator", func() bool { return len(s.changes(name)) > 0 })
	}

	s.checkAccounts()
}

// checkAnswers makes sure that the agent answered in no time, whatever the API server added to that.
func (s *scene) checkAnswers() {
	s.t.Helper()

	const duration = "runtime_watcher_agent_admission_duration_seconds"

	answers, sum := s.agent.Metric(duration+"_count"), s.agent.Metric(duration+"_sum")
	mean := time.Duration(sum / answers * float64(time.Second))
	s.t.Logf("the agent answered %v reviews, in %v each", answers, mean)

	if mean > time.Millisecond {
		s.t.Errorf("the agent took %v for an answer, want less than 1 ms: it must not wait for the control plane", mean)
	}
}

// write creates a ConfigMap and returns how long the API server took.
func (s *scene) write(name string, labels map[string]string) time.Duration {
	s.t.Helper()

	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault, Labels: labels},
		Data:       map[string]string{"key": "value"},
	}

	started := time.Now()
	if err := s.runtime.Client.Create(s.t.Context(), object); err != nil {
		s.t.Errorf("%s: %v", name, err)
	}

	return time.Since(started)
}

// compareWrites holds the writes that the agent saw against those that it did not. The bounds are those of noise on a busy machine:
// waiting for the control plane would cost seconds.
func compareWrites(t *testing.T, with, without []time.Duration) {
	t.Helper()

	slices.Sort(with)
	slices.Sort(without)

	median, slowest := len(with)/2, len(with)-1
	t.Logf("writes with the webhook: p50 %v, max %v; without: p50 %v, max %v", with[median], with[slowest], without[median], without[slowest])

	if with[median] > without[median]+15*time.Millisecond {
		t.Errorf("half of the writes took more than %v with the webhook, and %v without", with[median], without[median])
	}

	if limit := 3*without[slowest] + 300*time.Millisecond; with[slowest] > limit {
		t.Errorf("the slowest write took %v with the webhook, want at most %v", with[slowest], limit)
	}
}
