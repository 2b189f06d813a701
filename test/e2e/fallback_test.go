package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// oldPlane is a control plane that does not know contract v3 until it learns it.
type oldPlane struct {
	addr  string
	fleet *fleet.Fleet
	knows atomic.Bool

	mu         sync.Mutex
	deliveries []core.Delivery
}

func newOldPlane(t *testing.T, pki *rig.PKI) *oldPlane {
	t.Helper()

	f, err := fleet.New(fleet.Options{ResyncJitter: time.Millisecond, ExpiringWithin: time.Hour})
	if err != nil {
		t.Fatal(err)
	}

	p := &oldPlane{fleet: f}

	// The listener has a port of its own, which nobody uses: Start lets the fleet ask for resyncs.
	own, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	mtls := httpmtls.ServerTLSConfig(pki.ServerMaterial())

	l, err := listener.New(listener.FromTLS(listener.PeerOptions{}), listener.InsecureAllowAll(),
		map[core.Manager]core.Handler{manager: core.HandlerFunc(p.take)}, listener.Options{Listener: own, TLS: mtls, Fleet: f})
	if err != nil {
		t.Fatal(err)
	}

	p.run(t, l)

	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v3/") && !p.knows.Load() {
			http.NotFound(w, r)
		} else {
			l.ServeHTTP(w, r)
		}
	}))
	front.TLS, front.EnableHTTP2 = mtls.Clone(), true
	front.StartTLS()
	t.Cleanup(front.Close)

	p.addr = strings.TrimPrefix(front.URL, "https://")

	return p
}

func (p *oldPlane) run(t *testing.T, l *listener.Listener) {
	t.Helper()

	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- l.Start(ctx) }()

	t.Cleanup(func() {
		stop()

		if err := <-ended; err != nil {
			t.Errorf("listener: %v", err)
		}
	})
}

func (p *oldPlane) take(_ context.Context, d core.Delivery) error {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.deliveries = append(p.deliveries, d)

	return nil
}

// count returns how many events of a kind arrived, by name.
func (p *oldPlane) count(kind core.Kind) (all int, names map[string]int) {
	p.mu.Lock()
	defer p.mu.Unlock()

	names = make(map[string]int)

	for _, d := range p.deliveries {
		if d.Event.Kind == kind {
			all++
			names[d.Event.Watched.Name]++
		}
	}

	return all, names
}

func (p *oldPlane) await(t *testing.T, what string, kind core.Kind, n int) {
	t.Helper()

	rig.Eventually(t, 40*time.Second, what, func() bool { all, _ := p.count(kind); return all >= n })
}

// change tells the agent of a change, as an API server would.
func change(t *testing.T, agent *rig.Agent, pki *rig.PKI, name string) {
	t.Helper()

	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pki.CA.Pool(), MinVersion: tls.VersionTLS13}, DisableKeepAlives: true,
	}}
	body := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","kind":{"group":"","version":"v1",`+
		`"kind":"ConfigMap"},"name":%[1]q,"namespace":"default","operation":"CREATE","object":{"apiVersion":"v1","kind":"ConfigMap",`+
		`"metadata":{"name":%[1]q,"namespace":"default"}}}}`, name)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"https://"+rig.Address(agent.WebhookPort)+"/validate/"+manager, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}

	request.Header.Set("Content-Type", "application/json")

	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()

	if text, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(text), `"allowed":true`) {
		t.Fatalf("%s: answer %s %s, %v, want it allowed", name, answer.Status, text, err)
	}
}

func startFallbackAgent(t *testing.T, pki *rig.PKI, plane *oldPlane, env map[string]string) *rig.Agent {
	t.Helper()

	env["MANAGERS"], env["HEARTBEAT_INTERVAL"], env["CONTRACT_RETRY"] = manager, "1s", "3s"
	env["RESYNC_AGAIN"] = "0s" // They are counted.

	return rig.StartAgent(t, pki.RuntimeVolume(runtime, domain), plane.addr, rig.AgentOptions{Env: env})
}

const (
	metricInUse   = "runtime_watcher_agent_contract_in_use"
	metricUnknown = "runtime_watcher_agent_contract_unknown_total"
	metricPending = "runtime_watcher_agent_events_pending"
)

func inUse(agent *rig.Agent, version contract.Version) bool {
	return agent.Metric(metricInUse, fmt.Sprintf("contract=%q", version)) == 1
}

// TestUnknownContractIsNamed: without a fallback everything is kept until the control plane knows the contract.
func TestUnknownContractIsNamed(t *testing.T) {
	pki := rig.NewPKI(t)
	plane := newOldPlane(t, pki)
	agent := startFallbackAgent(t, pki, plane, map[string]string{})

	change(t, agent, pki, "demo")
	rig.Eventually(t, 20*time.Second, "the metric names it, and the events are kept", func() bool {
		return agent.Metric(metricUnknown) >= 2 && agent.Metric(metricPending) == 2
	})

	const line = "control plane does not seem to know the contract"
	if n := strings.Count(agent.Log(), line); n != 1 || !strings.Contains(agent.Log(), "CONTRACT_FALLBACK=v2") {
		t.Errorf("%d lines %q in the log, want one, with what to do", n, line)
	}

	plane.knows.Store(true)
	plane.await(t, "the change arrives", core.KindChanged, 1)
	rig.Eventually(t, 20*time.Second, "v3 is in use", func() bool { return inUse(agent, contract.V3) })
}

// TestFallbackAndReturn: with it, nothing is lost either way, and the way back costs one resync.
func TestFallbackAndReturn(t *testing.T) {
	const changes = 40

	pki := rig.NewPKI(t)
	plane := newOldPlane(t, pki)
	agent := startFallbackAgent(t, pki, plane, map[string]string{"CONTRACT_FALLBACK": "v2"})

	for i := range changes {
		change(t, agent, pki, fmt.Sprintf("old-%d", i))
	}

	plane.await(t, "all changes arrive by v2", core.KindChanged, changes)
	plane.await(t, "the resync of the start", core.KindResync, 1)

	if !inUse(agent, contract.V2) || inUse(agent, contract.V3) {
		t.Error("the metric does not say that v2 is in use")
	}

	// Heartbeats can not travel, and are told so: they are the occasions to try the newest contract again, too.
	const unsent = `result="no_heartbeats"`

	rig.Eventually(t, 20*time.Second, "heartbeats that can not travel are counted", func() bool {
		return agent.Metric("runtime_watcher_agent_forward_events_total", unsent) >= 2
	})
	rig.Eventually(t, 20*time.Second, "v3 is tried again", func() bool { return agent.Metric(metricUnknown) >= 2 })

	if state := plane.fleet.Get(runtime, manager).State; state != fleet.Unknown {
		t.Errorf("without heartbeats the runtime is %s, want unknown", state)
	}

	plane.knows.Store(true)
	rig.Eventually(t, 40*time.Second, "back to v3", func() bool { return inUse(agent, contract.V3) })
	plane.await(t, "a resync after the return", core.KindResync, 2)

	for i := range changes {
		change(t, agent, pki, fmt.Sprintf("new-%d", i))
	}

	plane.await(t, "all changes arrive by v3", core.KindChanged, 2*changes)
	rig.Eventually(t, 20*time.Second, "the runtime is fresh", func() bool {
		status := plane.fleet.Get(runtime, manager)

		return status.State == fleet.Fresh && status.Replicas[0].Heartbeat.Number > 4 && agent.Metric(metricPending) == 0
	})

	if resyncs, _ := plane.count(core.KindResync); resyncs != 2 {
		t.Errorf("%d resyncs, want that of the start and one after the return", resyncs)
	}

	if _, names := plane.count(core.KindChanged); len(names) != 2*changes {
		t.Errorf("%d objects, want %d", len(names), 2*changes)
	}
}
