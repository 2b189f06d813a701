package listenertest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/listener/listenertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// A unit test with this forwarder has the answers of a real connection.
func TestConformance(t *testing.T) {
	coretest.TestForwarder(t, func(_ *testing.T, farEnd *coretest.Recorder) coretest.ForwarderHarness {
		end := &handler{farEnd: farEnd}
		return coretest.ForwarderHarness{
			Forwarder:  listenertest.Forwarder(end, core.Peer{ID: "runtime-1"}),
			Disconnect: func() { end.down.Store(true) },
		}
	}, coretest.ForwarderOptions{Unsendable: &core.WatchEvent{}})
}

// handler answers as contract v3 requires.
type handler struct {
	farEnd *coretest.Recorder
	down   atomic.Bool
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.down.Load() {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	batch := must(contract.V3.Decode(must(io.ReadAll(r.Body))))
	to := core.Manager("manager-a")
	if r.URL.Path != contract.V3.Path(to) {
		to = "manager-b"
	}
	answer := contract.V3.AnswerTo(h.farEnd.Forward(r.Context(), to, batch))
	if answer.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(contract.Seconds(answer.RetryAfter), 10))
	}
	w.WriteHeader(answer.Status)
	_, _ = w.Write(must(answer.Body()))
}

// domains has the domain of each runtime.
type domains map[core.RuntimeID]string

func (d domains) Domain(_ context.Context, id core.RuntimeID, _ *core.WatchEvent) (string, error) {
	return d[id], nil
}

// The peer of the test passes through the verifier and the routes of a real listener.
func TestPinning(t *testing.T) {
	operator := &coretest.Recorder{}
	l := must(listener.New(listenertest.Peers(), listener.SANPinning(domains{"a": "a.example.com", "b": "b.example.com"}),
		map[core.Manager]core.Handler{"kyma": operator}, listener.Options{}))
	for name, c := range map[string]struct {
		peer core.Peer
		to   core.Manager
		want string
	}{
		"own domain":      {core.Peer{ID: "a", DNSNames: []string{"a.example.com"}}, "kyma", ""},
		"another domain":  {core.Peer{ID: "a", DNSNames: []string{"b.example.com"}}, "kyma", "forbidden"},
		"unknown manager": {core.Peer{ID: "a", DNSNames: []string{"a.example.com"}}, "other", "unknown_manager"},
		"wrong manager":   {core.Peer{ID: "a"}, "A/b", "invalid_manager"},
	} {
		t.Run(name, func(t *testing.T) {
			err := listenertest.Forwarder(l, c.peer).Forward(t.Context(), c.to, core.NewBatch(coretest.Changed("ConfigMap", "default", "x")))
			if some, ok := errors.AsType[core.EventErrors](err); ok {
				err = some[0]
			}
			if (err == nil) != (c.want == "") || err != nil && string(core.ReasonOf(err)) != c.want {
				t.Errorf("error %v, want the reason %q", err, c.want)
			}
		})
	}

	if calls := operator.Calls(); len(calls) != 1 || calls[0].Runtime != "a" {
		t.Errorf("the operator got %+v, want one event of a", calls)
	}
}

// A request that does not come from the forwarder of this package is refused.
func TestOtherRequestsHaveNoIdentity(t *testing.T) {
	l := must(listener.New(listenertest.Peers(), listener.InsecureAllowAll(),
		map[core.Manager]core.Handler{"kyma": &coretest.Recorder{}}, listener.Options{}))
	answer := httptest.NewRecorder()
	l.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v2/kyma/event", http.NoBody))
	if answer.Code != http.StatusUnauthorized {
		t.Errorf("status %d, want 401", answer.Code)
	}
}

// An agent and an operator in one process: an outbox, and a listener with a fleet.
func Example() {
	watched := must(fleet.New(fleet.Options{}))
	operator := core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		fmt.Println("reconcile", d.Runtime, "for", d.Event.Watched)
		return nil
	})
	l := must(listener.New(listenertest.Peers(), listener.SANPinning(domains{"runtime-1": "one.example.com"}),
		map[core.Manager]core.Handler{"my-operator": operator}, listener.Options{Fleet: watched}))
	runtime := core.Peer{ID: "runtime-1", DNSNames: []string{"one.example.com"}}
	agent := must(outbox.New(listenertest.Forwarder(l, runtime), outbox.Options{Settle: -1}))
	agent.Accept("my-operator", coretest.Changed("ConfigMap", "default", "demo"))
	ctx, stop := context.WithCancel(context.Background())
	stop() // The outbox delivers all accepted events before it ends.
	fmt.Println(agent.Start(ctx), watched.Get("runtime-1", "my-operator").State)
	// Output:
	// reconcile runtime-1 for default/demo
	// <nil> unknown
}
