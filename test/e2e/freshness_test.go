package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const (
	heartbeats    = 3 * time.Second
	pollFresh     = time.Hour
	pollOtherwise = 2 * time.Second
)

// watching is a scene. Its operator polls only runtimes that are not fresh.
type watching struct {
	*scene

	fleet   *fleet.Fleet
	metrics *prom.Registry

	mu      sync.Mutex
	changes []fleet.Transition
}

func newWatching(t *testing.T, env map[string]string) *watching {
	t.Helper()
	watched, err := fleet.New(fleet.Options{
		PollFresh: pollFresh, PollOtherwise: pollOtherwise,
		ExpiringWithin: 2 * time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}

	w := &watching{fleet: watched, metrics: prom.NewPedanticRegistry()}
	watched.OnChange(w.changed)
	if err := prometheus.RegisterFleet(w.metrics, watched, prometheus.FleetOptions{PerRuntime: 1}); err != nil {
		t.Fatal(err)
	}

	// The canary proves that the API server calls the agent. Without a proof, nothing is fresh.
	canary := lab.NewCanary(t, lab.SharedAPIServer(t, apiserver.Options{}), "freshness")
	maps.Copy(env, canary.Env)
	env["CANARY_INTERVAL"] = "1s"
	env["HEARTBEAT_INTERVAL"], env["MANAGERS"] = heartbeats.String(), manager
	env["RESEND_RESYNC"] = "0s" // They are counted.
	w.scene = newSceneWith(t, contract.V3, lab.OperatorOptions{
		Listener: listener.Options{Fleet: watched},
		RequeueAfter: func(name types.NamespacedName) time.Duration {
			return watched.RequeueAfter(core.RuntimeID(name.Name))
		},
	}, env)
	return w
}

func (w *watching) changed(change fleet.Transition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes = append(w.changes, change)
}

// observed reports whether the observer was called for a change to a state with a reason.
func (w *watching) observed(state fleet.State, reason string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, change := range w.changes {
		if change.To.State == state && change.To.Reason == reason {
			return true
		}
	}
	return false
}

// await waits until the runtime is in a state, also in the metrics and for the observer.
func (w *watching) await(timeout time.Duration, state fleet.State, reason string) {
	w.t.Helper()
	what := fmt.Sprintf("%s is %s %s", runtime, state, reason)
	lab.Eventually(w.t, timeout, what, func() bool {
		s := w.fleet.Get(runtime, manager)
		return s.State == state && s.Reason == reason && w.observed(state, reason) &&
			w.metric("runtime_watcher_fleet_runtimes", fmt.Sprintf("state=%q", state),
				fmt.Sprintf("reason=%q", reason)) == 1 &&
			w.metric("runtime_watcher_fleet_runtime_state", fmt.Sprintf("runtime=%q", runtime),
				fmt.Sprintf("state=%q", state)) == 1
	})
}

func (w *watching) metric(name string, labels ...string) float64 {
	w.t.Helper()
	return lab.Sum(get(w.t, promhttp.HandlerFor(w.metrics, promhttp.HandlerOpts{})), name, labels...)
}

func get(t *testing.T, handler http.Handler) []byte {
	t.Helper()
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	return answer.Body.Bytes()
}

// resyncs returns how many reached the operator.
func (w *watching) resyncs() (n int) {
	for _, d := range w.operator.Deliveries() {
		if d.Event.Resync {
			n++
		}
	}
	return n
}

// beats waits for that many more heartbeats of the current process.
func (w *watching) beats(n uint64) {
	w.t.Helper()
	number := func() uint64 {
		for _, p := range w.fleet.Get(runtime, manager).Replicas {
			if p.Heartbeat != nil {
				return p.Heartbeat.Number
			}
		}
		return 0
	}
	until := number() + n

	lab.Eventually(w.t, time.Minute, fmt.Sprintf("%d more heartbeats", n), func() bool { return number() >= until })
}

func TestSilenceIsNoticedAndNamed(t *testing.T) {
	w := newWatching(t, make(map[string]string))
	w.await(time.Minute, fleet.Fresh, "")
	w.beats(1)
	if after := w.fleet.RequeueAfter(runtime); after < pollFresh/2 {
		t.Errorf("a fresh runtime is polled after %v, want %v", after, pollFresh)
	}

	before, polled := w.resyncs(), len(w.operator.Reconciles())
	killed := time.Now()

	w.agent.Kill()

	// The agent is killed, so it sends no last heartbeat. 10 s beyond the two heartbeats are for a
	// busy machine.
	w.await(2*heartbeats+10*time.Second, fleet.Stale, "")
	t.Logf("stale %v after the agent was killed, with a heartbeat every %v", time.Since(killed), heartbeats)
	if after := w.fleet.RequeueAfter(runtime); after > 2*pollOtherwise {
		t.Errorf("a stale runtime is polled after %v, want %v", after, pollOtherwise)
	}

	lab.Eventually(t, 30*time.Second, "the stale runtime is polled again and again", func() bool {
		return len(w.operator.Reconciles()) >= polled+3
	})
	if n := w.resyncs(); n != before {
		t.Errorf("%d resyncs of a runtime that is silent, want none", n-before)
	}

	w.agent.Restart()
	w.await(time.Minute, fleet.Fresh, "")
	w.beats(2)
	if n := w.resyncs(); n != before+1 {
		t.Errorf("%d resyncs after the return, want exactly 1", n-before)
	}

	polled = len(w.operator.Reconciles())

	w.beats(1)
	if n := len(w.operator.Reconciles()); n != polled {
		t.Errorf("%d reconciles of a runtime that is fresh again, want none", n-polled)
	}

	var shown bytes.Buffer
	if err := json.Indent(&shown, get(t, statuspage.Authenticated(statuspage.FleetHandler(w.fleet))), "", "  "); err != nil {
		t.Error(err)
	}

	t.Logf("FleetHandler:\n%s", &shown)
}
