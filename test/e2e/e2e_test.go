// Package e2e runs the real agent between real API servers and a real operator.
package e2e

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

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
	// patience is for a busy machine.
	patience = 3 * time.Minute

	manager = "kyma"
	runtime = "runtime-1"
	domain  = "runtime-1.example.com"
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
	operatorOptions lab.OperatorOptions
}

// newScene is a runtime with an agent of contract v3. The agent has env beyond the usual environment.
func newScene(t *testing.T, env map[string]string) *scene {
	t.Helper()
	s := newClusters(t, lab.OperatorOptions{})
	env["KCP_CONTRACT"], env["LOG_LEVEL"], env["MANAGERS"] = string(contract.V3), "debug", manager
	s.agent = lab.StartAgent(t, s.pki.RuntimeVolume(runtime, domain), s.operatorOptions.Addr,
		lab.AgentOptions{Env: env})
	s.awaitResyncs(1)
	lab.Register(t, s.runtime, "runtime-watcher", s.agent.WebhookPort, s.pki.CA.PEM,
		admission.ConfigurationOptions{}, watchedConfigMaps())
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

// clusters are those of one test at a time. Others run beside it.
var clusters sync.Mutex

// newClusters returns a control plane with its operator, and a runtime without agent. Both are the
// shared API server: a test machine is slow to start one for each.
func newClusters(t *testing.T, operator lab.OperatorOptions) *scene {
	t.Helper()
	t.Parallel()
	clusters.Lock()
	t.Cleanup(clusters.Unlock)
	s := &scene{t: t, pki: lab.NewPKI(t), operatorOptions: operator}
	s.operatorOptions.Addr = lab.Address(lab.FreePort(t))
	s.plane = lab.SharedAPIServer(t, apiserver.Options{})
	s.runtime = s.plane
	t.Cleanup(s.removeWatched)
	lab.AddRuntime(t, s.plane, runtime, domain)
	lab.AddRuntime(t, s.plane, "runtime-2", "runtime-2.example.com")
	s.startOperator()
	return s
}

// removeWatched removes the objects that the test has written.
func (s *scene) removeWatched() {
	ctx := context.WithoutCancel(s.t.Context())
	if err := s.runtime.Client.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(metav1.NamespaceDefault),
		client.MatchingLabels(watched())); err != nil {
		s.t.Error(err)
	}
}

func (s *scene) startOperator() {
	s.t.Helper()
	s.operator = lab.StartOperator(s.t, s.plane, s.pki.ServerMaterial(), manager, s.operatorOptions)
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

func (s *scene) awaitChanges(name string, n int) {
	s.t.Helper()
	lab.Eventually(s.t, patience, fmt.Sprintf("%d changes of %s reached the operator", n, name), func() bool {
		return len(s.changes(name)) >= n
	})
}

func (s *scene) awaitResyncs(n int) {
	s.t.Helper()
	lab.Eventually(s.t, patience, fmt.Sprintf("%d resyncs reached the operator", n),
		func() bool { return s.resyncs() >= n })
}

// resyncs returns how many resyncs of agents reached the operator. Those of a fleet do not count.
// It asks for one if the first heartbeat of an agent overtakes its first resync. The time of its
// event is that of the delivery.
func (s *scene) resyncs() (n int) {
	for _, d := range s.operator.Deliveries() {
		if d.Event.Resync && d.Runtime == runtime && !d.Event.Time.Equal(d.Received) {
			n++
		}
	}
	return n
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
