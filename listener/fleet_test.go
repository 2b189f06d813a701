package listener_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

func TestFleetHandler(t *testing.T) {
	t.Parallel()

	watched := newFleet(t, fleet.Options{})
	watched.Observe(runtimeA, manager, []core.WatchEvent{heartbeat(runtimeA, 1)})
	watched.Observe(runtimeA, "other", []core.WatchEvent{change(runtimeA, 1)})
	watched.Observe(runtimeB, manager, []core.WatchEvent{change(runtimeB, 1)})

	handler := listener.FleetHandler(watched)
	tests := []struct {
		query string
		want  []string
	}{
		{"", []string{"runtime-a lifecycle fresh", "runtime-a other unknown", "runtime-b lifecycle unknown"}},
		{"?state=fresh", []string{"runtime-a lifecycle fresh"}},
		{"?manager=lifecycle", []string{"runtime-a lifecycle fresh", "runtime-b lifecycle unknown"}},
		{"?runtime=runtime-a", []string{"runtime-a lifecycle fresh", "runtime-a other unknown"}},
		{"?runtime=runtime-a&state=unknown&manager=other", []string{"runtime-a other unknown"}},
		{"?state=stale", []string{}},
	}

	for _, test := range tests {
		t.Run(test.query, func(t *testing.T) {
			t.Parallel()

			w := serve(handler, httptest.NewRequest(http.MethodGet, "/"+test.query, http.NoBody))
			if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
				t.Fatalf("answer %d of type %q, want 200 of JSON", w.Code, w.Header().Get("Content-Type"))
			}

			var view struct {
				Counts   []map[string]any `json:"counts"`
				Runtimes []fleet.Status   `json:"runtimes"`
			}
			if err := json.Unmarshal(w.Body.Bytes(), &view); err != nil {
				t.Fatal(err)
			}

			have := []string{}
			for _, s := range view.Runtimes {
				have = append(have, string(s.Runtime)+" "+string(s.Manager)+" "+string(s.State))
			}

			if diff := cmp.Diff(test.want, have); diff != "" {
				t.Errorf("runtimes (-want +have):\n%s", diff)
			}

			counts := []map[string]any{
				{"manager": "lifecycle", "state": "fresh", "count": 1.0},
				{"manager": "lifecycle", "state": "unknown", "count": 1.0},
				{"manager": "other", "state": "unknown", "count": 1.0},
			}
			if diff := cmp.Diff(counts, view.Counts); diff != "" {
				t.Errorf("counts (-want +have):\n%s", diff)
			}
		})
	}

	if w := serve(handler, post("/", "{}")); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("answer %d to POST, want 405", w.Code)
	}
}

func TestFleetHandlerOfNobody(t *testing.T) {
	t.Parallel()

	w := serve(listener.FleetHandler(newFleet(t, fleet.Options{})), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	if have, want := w.Body.String(), `{"counts":[],"runtimes":[]}`+"\n"; have != want {
		t.Errorf("body %q, want %q", have, want)
	}
}

// A handler that panics must not end the process, nor cost the resync.
func TestResyncSurvivesAPanic(t *testing.T) {
	t.Parallel()

	asked := make(chan struct{}, 16)
	handler := core.HandlerFunc(func(context.Context, core.Delivery) error {
		asked <- struct{}{}

		if len(asked) == 1 {
			panic("inside")
		}

		return nil
	})

	resynced := make(chan string, 1)
	watched := newFleet(t, fleet.Options{
		ResyncJitter: time.Nanosecond,
		Hooks:        fleet.Hooks{Resynced: func(_ core.Manager, cause string) { resynced <- cause }},
	})
	start(t, listener.PeerSourceFunc(known), listener.InsecureAllowAll(), handler, listener.Options{Fleet: watched})
	watched.Observe(runtimeA, manager, []core.WatchEvent{change(runtimeA, 1)})

	if cause := <-resynced; cause != fleet.CauseNewEpoch || len(asked) != 2 {
		t.Errorf("resync because of %s after %d attempts, want %s after 2", cause, len(asked), fleet.CauseNewEpoch)
	}
}

// Listeners for different managers may feed one fleet: none may swallow the resyncs of the other.
func TestListenersShareAFleet(t *testing.T) {
	t.Parallel()

	var record recorder

	resynced := make(chan core.Manager, 16)
	watched := newFleet(t, fleet.Options{
		ResyncJitter: time.Nanosecond,
		Hooks:        fleet.Hooks{Resynced: func(m core.Manager, _ string) { resynced <- m }},
	})

	start(t, listener.PeerSourceFunc(known), listener.InsecureAllowAll(), &record, listener.Options{Fleet: watched})
	watched.Observe(runtimeA, "other", []core.WatchEvent{change(runtimeA, 1)})

	// The second comes when all that was due with the first has been tried.
	for _, runtime := range []core.RuntimeID{runtimeB, "runtime-c"} {
		watched.Observe(runtime, manager, []core.WatchEvent{change(runtime, 1)})

		if have := <-resynced; have != manager {
			t.Fatalf("resync for %q, which is of another listener", have)
		}
	}

	deliveries, _ := record.taken()
	if slices.ContainsFunc(deliveries, func(d core.Delivery) bool { return d.Manager != manager }) {
		t.Errorf("delivered %+v", deliveries)
	}
}
