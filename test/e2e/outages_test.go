package e2e

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// seldom is longer than the waits: no heartbeat shows what the tests of this file wait for.
const seldom = 2 * lab.Patience

// lostPath is a runtime with rare heartbeats, and the fleet of its control plane.
type lostPath struct {
	t           *testing.T
	name, fault string
	fleet       *fleet.Fleet
	relay       *lab.Relay
	agent       *lab.Agent
	seen        uint64 // the last heartbeat before the fault
}

func newLostPath(t *testing.T, fault, protocol string) *lostPath {
	t.Helper()
	pki := lab.NewPKI(t)
	material := pki.ServerMaterial()
	watched := lab.Must(fleet.New(fleet.Options{}))
	socket := lab.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	events := lab.Must(listener.New(listener.FromTLS(keys.Roots(material), listener.PeerOptions{}), listener.InsecureAllowAll(),
		map[core.Manager]core.Handler{manager: core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })},
		listener.Options{Listener: socket, TLS: keys.ServerTLSConfig(material), Fleet: watched}))
	lab.Run(t, "listener", events.Start)
	s := &lostPath{
		t: t, name: fault + ", " + protocol, fault: fault, fleet: watched,
		relay: lab.Must(lab.NewRelay("127.0.0.1:0", time.Hour, socket.Addr().String())),
	}
	t.Cleanup(s.relay.Close)
	env := map[string]string{
		"CONTROL_PLANE_PROTOCOL": protocol, "CONTROL_PLANE_CONTRACT": string(contract.V3), "MANAGERS": manager, "HEARTBEAT_INTERVAL": seldom.String(),
	}
	s.agent = lab.StartAgent(t, pki.RuntimeVolume(runtime, domain), s.relay.Addr(), lab.AgentOptions{Env: env})
	s.await(fleet.Unproved)
	return s
}

// await returns when the runtime has that state.
func (s *lostPath) await(state fleet.State) {
	s.t.Helper()
	lab.Eventually(s.t, lab.Patience, s.name+": the runtime is "+string(state), func() bool {
		return s.fleet.Get(runtime, manager).State == state
	})
}

func (s *lostPath) lastHeartbeat() uint64 {
	return s.fleet.Get(runtime, manager).Replicas[0].Heartbeat.Number
}

func sever(s *lostPath) {
	lab.NoError(s.t, s.relay.Sever())
	s.relay.Hold(true)
}

// TestLostPath has agents with rare heartbeats. Twice their interval would pass until the fleet
// notices their end, if it did not see their connections. All of them wait at the same time.
func TestLostPath(t *testing.T) {
	t.Parallel()
	faults := map[string]struct{ inject, mend func(*lostPath) }{
		"killed":             {func(s *lostPath) { s.agent.Kill() }, func(s *lostPath) { s.agent.Restart() }},
		"cut off":            {sever, func(s *lostPath) { s.relay.Hold(false) }},
		"closed by a server": {func(s *lostPath) { s.relay.Cut() }, nil},
	}
	var paths []*lostPath
	for fault := range faults {
		for _, protocol := range []string{"http1", "http2"} {
			paths = append(paths, newLostPath(t, fault, protocol))
		}
	}
	for _, s := range paths {
		s.seen = s.lastHeartbeat()
		faults[s.fault].inject(s)
	}
	for _, s := range paths {
		if faults[s.fault].mend == nil {
			lab.Eventually(t, lab.Patience, s.name+": the agent has sent a heartbeat again", func() bool {
				return s.lastHeartbeat() > s.seen
			})
			continue
		}
		s.await(fleet.Stale)
		faults[s.fault].mend(s)
	}
	for _, s := range paths {
		s.await(fleet.Unproved)
	}
}

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
		Env: map[string]string{"CONTROL_PLANE_CONTRACT": "v3", "MANAGERS": manager, "RESEND_RESYNC": "0s"},
	})
	lab.Eventually(t, lab.Patience, "the first resync", func() bool { return s.resyncs.Load() > 0 })
	lab.Register(t, s.runtime, "runtime-watcher", agent.WebhookPort, s.pki.CA.PEM, admission.ConfigurationOptions{}, watchedConfigMaps())
	lab.AwaitReviews(t, s.runtime, agent, watchedConfigMaps().Selector.Labels)
	s.write("before") // There is a connection now.
	lab.Eventually(t, lab.Patience, "the first change", func() bool { return s.changed("before") })
	// On a busy machine there may be one before ours.
	resyncs, stalled := s.resyncs.Load(), agent.Metric(stalls)
	agent.Freeze()
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() { s.write(fmt.Sprintf("during-%d", i)) })
	}
	all.Wait()
	agent.Thaw()
	s.write("after")
	lab.Eventually(t, lab.Patience, "the change after the stall", func() bool { return s.changed("after") })
	lab.Eventually(t, lab.Patience, "a resync", func() bool { return s.resyncs.Load() > resyncs })
	seen := 0
	for i := range writers {
		if s.changed(fmt.Sprintf("during-%d", i)) {
			seen++
		}
	}
	t.Logf("of %d writes, the agent saw %d; %v handshakes failed", writers, seen, agent.Metric(failures))
	if seen == writers {
		t.Error("the agent saw all writes, so this test does not need the resync")
	}
	lab.Eventually(t, lab.Patience, "the stall is counted", func() bool { return agent.Metric(stalls) > stalled })
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
