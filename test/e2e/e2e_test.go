// Package e2e runs the real agent between real API servers and a real operator.
package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
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
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

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
	plane, runtime  *apiserver.ControlPlane
	pki             *lab.PKI
	agent           *lab.Agent
	operator        *lab.Operator
	owner           types.NamespacedName
	operatorOptions lab.OperatorOptions
}

func newScene(t *testing.T, version contract.Version) *scene {
	t.Helper()
	return newSceneWith(t, version, lab.OperatorOptions{}, nil)
}

// newSceneWith is newScene with choices for the operator, and an environment for the agent beyond
// the usual.
func newSceneWith(t *testing.T, version contract.Version, operator lab.OperatorOptions, env map[string]string) *scene {
	t.Helper()
	s := newClusters(t, operator)
	env = maps.Clone(env)
	if env == nil {
		env = make(map[string]string)
	}

	env["KCP_CONTRACT"], env["LOG_LEVEL"], env["MANAGERS"] = string(version), "debug", manager
	s.agent = lab.StartAgent(t, s.pki.RuntimeVolume(runtime, domain), s.operatorOptions.Addr,
		lab.AgentOptions{Env: env})
	if !version.NeedsOwner() { // Without an owner, a resync has no object to reconcile.
		s.awaitResyncs(1)
	}

	lease := types.NamespacedName{Namespace: lab.Namespace, Name: path.Base(env["CANARY_LEASE"])}
	if env["CANARY_LEASE"] == "" {
		lease = types.NamespacedName{}
	}

	lab.Register(t, s.runtime, "runtime-watcher", s.agent.WebhookPort, s.pki.CA.PEM(),
		admission.ConfigurationOptions{Canary: lease}, watch.Watch{
			Name:     types.NamespacedName{Namespace: lab.Namespace, Name: "deployments"},
			Manager:  manager,
			Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
			Selector: watch.Selector{Labels: watched()},
		}, watchedConfigMaps())
	lab.AwaitReviews(t, s.runtime, s.agent, watched())
	return s
}

func watchedConfigMaps() watch.Watch {
	return watch.Watch{
		Name:     types.NamespacedName{Namespace: lab.Namespace, Name: "configmaps"},
		Manager:  manager,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Selector: watch.Selector{Labels: watched()},
	}
}

// newClusters returns a control plane with its operator, and a runtime without agent. Both are the
// shared API server: a test machine is slow to start one for each.
func newClusters(t *testing.T, operator lab.OperatorOptions) *scene {
	t.Helper()
	s := &scene{t: t, pki: lab.NewPKI(t), operatorOptions: operator}
	s.operatorOptions.Addr = lab.Address(lab.FreePort(t))
	s.plane = lab.SharedAPIServer(t, apiserver.Options{})
	s.runtime = s.plane
	t.Cleanup(s.removeWatched)
	s.owner = lab.AddRuntime(t, s.plane, runtime, domain)
	lab.AddRuntime(t, s.plane, "runtime-2", "runtime-2.example.com")
	s.startOperator()
	return s
}

// removeWatched removes the objects that the test has written.
func (s *scene) removeWatched() {
	ctx := context.WithoutCancel(s.t.Context())
	for _, kind := range []client.Object{&corev1.ConfigMap{}, &appsv1.Deployment{}} {
		err := s.runtime.Client.DeleteAllOf(ctx, kind, client.InNamespace(metav1.NamespaceDefault),
			client.MatchingLabels(watched()))
		if err != nil {
			s.t.Error(err)
		}
	}
}

func (s *scene) startOperator() {
	s.t.Helper()
	s.operator = lab.StartOperator(s.t, s.plane, s.pki.ServerMaterial(), manager, s.operatorOptions)
}

// deployment returns an object with a spec that asks for so many replicas.
func (s *scene) deployment(name string, replicas int32) *appsv1.Deployment {
	labels := watched()
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: metav1.NamespaceDefault, Labels: labels,
			Annotations: map[string]string{core.OwnerAnnotation: s.owner.String()},
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
		if !d.Event.Resync && d.Event.Watched.Name == name {
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

	lab.Eventually(s.t, 5*time.Second, what+" is decided: "+decision, func() bool {
		return s.agent.Metric(reviews, fmt.Sprintf("decision=%q", decision)) > before
	})
}

func (s *scene) awaitChanges(name string, n int) {
	s.t.Helper()
	lab.Eventually(s.t, 10*time.Second, fmt.Sprintf("%d changes of %s reached the operator", n, name), func() bool {
		return len(s.changes(name)) >= n
	})
}

func (s *scene) awaitResyncs(n int) {
	s.t.Helper()
	lab.Eventually(s.t, 10*time.Second, fmt.Sprintf("%d resyncs reached the operator", n),
		func() bool { return s.resyncs() >= n })
}

// resyncs returns how many resyncs reached the operator.
func (s *scene) resyncs() (n int) {
	for _, d := range s.operator.Deliveries() {
		if d.Event.Resync && d.Runtime == runtime {
			n++
		}
	}
	return n
}

func TestChangeInARuntimeStartsAReconcile(t *testing.T) {
	for _, version := range contract.Versions() {
		t.Run(string(version), func(t *testing.T) {
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
	lab.Eventually(s.t, 10*time.Second, "nothing is pending",
		func() bool { return s.agent.Metric(prefix+"pending") == 0 })

	text := s.agent.Scrape() // All of one moment.
	accepted, delivered := lab.Sum(text, prefix+"accepted_total"), lab.Sum(text, prefix+"delivered_total")
	coalesced, dropped := lab.Sum(text, prefix+"coalesced_total"), lab.Sum(text, prefix+"dropped_total")
	if accepted == 0 || accepted != delivered+coalesced+dropped || dropped != 0 {
		s.t.Errorf("accepted %v, delivered %v, coalesced %v, dropped %v: they must add up, with none dropped",
			accepted, delivered, coalesced, dropped)
	}
}

// write creates a watched ConfigMap.
func (s *scene) write(name string) {
	s.t.Helper()
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault, Labels: watched()},
		Data:       map[string]string{"key": "value"},
	}

	if err := s.runtime.Client.Create(s.t.Context(), object); err != nil {
		s.t.Errorf("%s: %v", name, err)
	}
}
