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
	fleet *fleet.Fleet
	relay *lab.Relay
	agent *lab.Agent
	t     *testing.T
}

func newLostPath(t *testing.T, env map[string]string) *lostPath {
	t.Helper()
	pki := lab.NewPKI(t)
	material := pki.ServerMaterial()
	watched := lab.Must(fleet.New(fleet.Options{}))
	socket := lab.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	events := lab.Must(listener.New(listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{}), listener.InsecureAllowAll(),
		map[core.Manager]core.Handler{manager: core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })},
		listener.Options{Listener: socket, TLS: keys.ServerTLSConfig(material), Fleet: watched}))
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- events.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	s := &lostPath{fleet: watched, relay: lab.Must(lab.NewRelay("127.0.0.1:0", time.Hour, socket.Addr().String())), t: t}
	t.Cleanup(s.relay.Close)
	env["KCP_CONTRACT"], env["MANAGERS"], env["HEARTBEAT_INTERVAL"] = string(contract.V3), manager, seldom.String()
	s.agent = lab.StartAgent(t, pki.RuntimeVolume(runtime, domain), s.relay.Addr(), lab.AgentOptions{Env: env})
	s.await(fleet.Unproved)
	return s
}

// await returns when the runtime has that state.
func (s *lostPath) await(state fleet.State) {
	s.t.Helper()
	began := time.Now()
	lab.Eventually(s.t, patience, "the runtime is "+string(state), func() bool {
		return s.fleet.Get(runtime, manager).State == state
	})
	s.t.Logf("%s after %v", state, time.Since(began).Round(time.Second))
}

func (s *lostPath) lastHeartbeat() uint64 {
	return s.fleet.Get(runtime, manager).Replicas[0].Heartbeat.Number
}

// TestLostPath has agents with a heartbeat every 5 min. Twice that time would pass until the fleet
// notices their end, if it did not see their connections.
func TestLostPath(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"http1", "http2"} {
		t.Run("killed, "+protocol, func(t *testing.T) {
			t.Parallel()
			s := newLostPath(t, map[string]string{"KCP_PROTOCOL": protocol})
			s.agent.Kill()
			s.await(fleet.Stale)
			s.agent.Restart()
			s.await(fleet.Unproved)
		})
		t.Run("cut off, "+protocol, func(t *testing.T) {
			t.Parallel()
			s := newLostPath(t, map[string]string{"KCP_PROTOCOL": protocol})
			if err := s.relay.Sever(); err != nil {
				t.Fatal(err)
			}
			s.relay.Hold(true)
			s.await(fleet.Stale)
			s.relay.Hold(false)
			s.await(fleet.Unproved)
		})
		t.Run("closed by a server, "+protocol, func(t *testing.T) {
			t.Parallel()
			s := newLostPath(t, map[string]string{"KCP_PROTOCOL": protocol})
			seen := s.lastHeartbeat()
			s.relay.Cut()
			lab.Eventually(t, patience, "the agent has sent a heartbeat again", func() bool {
				return s.lastHeartbeat() > seen
			})
			s.await(fleet.Unproved)
		})
	}
}
