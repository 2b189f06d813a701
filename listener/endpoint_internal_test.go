package listener

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// What v1 and v2 can not carry, and v3 does.
func TestDeliver(t *testing.T) {
	t.Parallel()

	changed := core.WatchEvent{Kind: core.KindChanged, ID: "1"}
	claimed := core.WatchEvent{Kind: core.KindChanged, ID: "2", Source: "runtime-a"}
	foreign := core.WatchEvent{Kind: core.KindChanged, ID: "3", Source: "runtime-b"}
	heartbeat := core.WatchEvent{Kind: core.KindHeartbeat, ID: "4"}

	tests := []struct {
		name   string
		events []core.WatchEvent
		status int
		reason string
		ids    []string
	}{
		{"several", []core.WatchEvent{changed, claimed}, http.StatusAccepted, "", []string{"1", "2"}},
		{"claim of another", []core.WatchEvent{changed, foreign}, http.StatusServiceUnavailable, ReasonPartial, []string{"1"}},
		{"claims of another", []core.WatchEvent{foreign, foreign}, http.StatusForbidden, ReasonSourceMismatch, nil},
		{"heartbeat", []core.WatchEvent{heartbeat, changed}, http.StatusAccepted, "", []string{"1"}},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			var ids []string

			handler := core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
				ids = append(ids, d.Event.ID)

				return nil
			})
			nobody := PeerSourceFunc(func(*http.Request) (core.Peer, error) { return core.Peer{}, nil })

			l, err := New(nobody, InsecureAllowAll(), map[core.Manager]core.Handler{"m": handler}, Options{})
			if err != nil {
				t.Fatal(err)
			}

			x := exchange{
				endpoint: &endpoint{Listener: l, version: contract.V3},
				request:  httptest.NewRequest(http.MethodPost, "/", http.NoBody),
				peer:     core.Peer{ID: "runtime-a"}, manager: "m", handler: handler,
			}
			a := x.deliver(test.events)

			if a.status != test.status || a.reason != test.reason {
				t.Errorf("answer %d with reason %q, want %d with %q", a.status, a.reason, test.status, test.reason)
			}

			if diff := cmp.Diff(test.ids, ids); diff != "" {
				t.Errorf("deliveries (-want +have):\n%s", diff)
			}
		})
	}
}
