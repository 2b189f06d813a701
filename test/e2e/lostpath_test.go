package e2e

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// seldom is longer than patience: no heartbeat shows what the tests of this file wait for.
const seldom = 5 * time.Minute

// lostPath is a runtime with rare heartbeats, and the fleet of its control plane.
type lostPath struct {
	t           *testing.T
	name, fault string
	fleet       *fleet.Fleet
	relay       *lab.Relay
	agent       *lab.Agent
	seen        uint64    // the last heartbeat before the fault
	changed     time.Time // when the fault began or ended
}

func newLostPath(t *testing.T, fault, protocol string) *lostPath {
	t.Helper()
	pki := lab.NewPKI(t)
	material := pki.ServerMaterial()
	watched := lab.Must(fleet.New(fleet.Options{}))
	socket := lab.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	events := lab.Must(listener.New(listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{}), listener.InsecureAllowAll(),
		map[core.Manager]core.Handler{manager: core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })},
		listener.Options{Listener: socket, TLS: keys.ServerTLSConfig(material), Fleet: watched}))
	lab.Run(t, "listener", events.Start)
	s := &lostPath{
		t: t, name: fault + ", " + protocol, fault: fault, fleet: watched,
		relay: lab.Must(lab.NewRelay("127.0.0.1:0", time.Hour, socket.Addr().String())), changed: time.Now(),
	}
	t.Cleanup(s.relay.Close)
	env := map[string]string{
		"KCP_PROTOCOL": protocol, "KCP_CONTRACT": string(contract.V3), "MANAGERS": manager, "HEARTBEAT_INTERVAL": seldom.String(),
	}
	s.agent = lab.StartAgent(t, pki.RuntimeVolume(runtime, domain), s.relay.Addr(), lab.AgentOptions{Env: env})
	s.await(fleet.Unproved)
	return s
}

// await returns when the runtime has that state.
func (s *lostPath) await(state fleet.State) {
	s.t.Helper()
	lab.Eventually(s.t, patience, s.name+": the runtime is "+string(state), func() bool {
		return s.fleet.Get(runtime, manager).State == state
	})
	s.t.Logf("%s: %s after %v", s.name, state, time.Since(s.changed).Round(time.Second))
}

func (s *lostPath) change(how func(*lostPath)) {
	s.changed = time.Now()
	how(s)
}

func (s *lostPath) lastHeartbeat() uint64 {
	return s.fleet.Get(runtime, manager).Replicas[0].Heartbeat.Number
}

func sever(s *lostPath) {
	lab.NoError(s.t, s.relay.Sever())
	s.relay.Hold(true)
}

// TestLostPath has agents with a heartbeat every 5 min. Twice that time would pass until the fleet
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
		s.change(faults[s.fault].inject)
	}
	for _, s := range paths {
		if faults[s.fault].mend == nil {
			lab.Eventually(t, patience, s.name+": the agent has sent a heartbeat again", func() bool {
				return s.lastHeartbeat() > s.seen
			})
			continue
		}
		s.await(fleet.Stale)
		s.change(faults[s.fault].mend)
	}
	for _, s := range paths {
		s.await(fleet.Unproved)
	}
}
