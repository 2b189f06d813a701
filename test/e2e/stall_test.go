package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestStalledAgent stops the agent for longer than an API server waits for its webhooks. The agent
// reads calls on an open connection afterwards. A call that needed a new connection is lost without
// a failed handshake, and a resync stands in.
func TestStalledAgent(t *testing.T) {
	const (
		writers  = 6
		stalls   = "runtime_watcher_agent_stalls_total"
		failures = "runtime_watcher_agent_tls_handshake_failures_total"
	)
	s := newScene(t)
	agent := lab.StartAgent(t, s.pki.RuntimeVolume(runtime, domain), s.plane.Addr, lab.AgentOptions{
		Env: map[string]string{"KCP_CONTRACT": "v3", "MANAGERS": manager, "RESEND_RESYNC": "0s"},
	})
	lab.Eventually(t, patience, "the first resync", func() bool { return s.resyncs.Load() > 0 })
	lab.Register(t, s.runtime, "runtime-watcher", agent.WebhookPort, s.pki.CA.PEM, admission.ConfigurationOptions{}, watchedConfigMaps())
	lab.AwaitReviews(t, s.runtime, agent, watchedConfigMaps().Selector.Labels)
	s.write("before") // There is a connection now.
	lab.Eventually(t, patience, "the first change", func() bool { return s.changed("before") })
	// On a busy machine there may be one before ours.
	resyncs, stalled := s.resyncs.Load(), agent.Metric(stalls)
	began := time.Now()
	agent.Freeze()
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() { s.write(fmt.Sprintf("during-%d", i)) })
	}
	all.Wait()
	agent.Thaw()
	s.write("after")
	lab.Eventually(t, patience, "the change after the stall", func() bool { return s.changed("after") })
	lab.Eventually(t, patience, "a resync", func() bool { return s.resyncs.Load() > resyncs })
	seen := 0
	for i := range writers {
		if s.changed(fmt.Sprintf("during-%d", i)) {
			seen++
		}
	}
	t.Logf("stopped for %v: of %d writes, the agent saw %d; %v handshakes failed", time.Since(began), writers,
		seen, agent.Metric(failures))
	if seen == writers {
		t.Error("the agent saw all writes, so this test does not need the resync")
	}
	lab.Eventually(t, patience, "the stall is counted", func() bool { return agent.Metric(stalls) > stalled })
}

// write creates a watched ConfigMap, until the test ends.
func (s *scene) write(name string) {
	s.t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: name, Labels: watchedConfigMaps().Selector.Labels,
	}}
	if err := s.runtime.Client.Create(s.t.Context(), object); err != nil {
		s.t.Errorf("%s: %v", name, err)
	}
	s.t.Cleanup(func() { _ = s.runtime.Client.Delete(context.WithoutCancel(s.t.Context()), object) })
}

// changed reports whether a change of an object has reached the operator.
func (s *scene) changed(name string) bool {
	return len(s.plane.Started(lab.Look{Runtime: runtime, Object: types.NamespacedName{
		Namespace: metav1.NamespaceDefault, Name: name,
	}})) > 0
}
