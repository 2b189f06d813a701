package listener_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// Listeners for different managers may feed one fleet: each gets the resyncs of its manager.
func TestListenersShareAFleet(t *testing.T) {
	t.Parallel()

	resynced := make(chan core.Manager, 16)
	watched := newFleet(t, fleet.Options{ResyncJitter: time.Millisecond})
	for _, name := range []core.Manager{manager, "other"} {
		handler := core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
			if d.Manager != name {
				t.Errorf("resync for %s was handed to %s", d.Manager, name)
			}
			resynced <- d.Manager
			return nil
		})
		serving(t, newListenerFor(t, name, handler, listener.Options{Fleet: watched}))
	}

	watched.Receiver().Observe(core.Peer{ID: runtimeA}, "other", change(runtimeA, 1), nil)
	watched.Receiver().Observe(core.Peer{ID: runtimeA}, manager, change(runtimeA, 1), nil)
	if first, second := <-resynced, <-resynced; first == second {
		t.Errorf("two resyncs for %s, want one for each manager", first)
	}
}

// newListenerFor serves plain HTTP for one manager, once it is started.
func newListenerFor(t *testing.T, name core.Manager, handler core.Handler, opts listener.Options) *listener.Listener {
	t.Helper()
	opts.Listener = listen(t)
	l := must(listener.New(listener.PeersFunc(known), listener.InsecureAllowAll(), map[core.Manager]core.Handler{name: handler}, opts))(t)
	return l
}

// Start fails for the second listener: two would deliver each resync twice.
func TestListenersOfOneManagerDoNotShareAFleet(t *testing.T) {
	t.Parallel()

	var record recorder
	watched := newFleet(t, fleet.Options{ResyncJitter: time.Millisecond})
	start(t, listener.PeersFunc(known), listener.InsecureAllowAll(), &record, listener.Options{Fleet: watched})
	watched.Receiver().Observe(core.Peer{ID: runtimeA}, manager, change(runtimeA, 1), nil)
	eventually(t, func() bool {
		resyncs, _ := record.taken()
		return len(resyncs) > 0
	})

	second := newListenerFor(t, manager, &recorder{}, listener.Options{Fleet: watched})
	if err := second.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "delivered elsewhere") {
		t.Errorf("Start returned %v, want that the resyncs are delivered elsewhere", err)
	}
}

// named takes the peer from a header, as a gateway would.
func named(r *http.Request) (core.Peer, error) {
	return core.Peer{ID: core.RuntimeID(r.Header.Get("Runtime"))}, nil
}

func batchFrom(t *testing.T, runtime core.RuntimeID, batch core.Batch) *http.Request {
	t.Helper()

	r := httptest.NewRequest(http.MethodPost, contract.V3.Path(manager), bytes.NewReader(encode(t, batch)))
	r.Header.Set("Content-Type", contract.V3.ContentType())
	r.Header.Set("Runtime", string(runtime))
	return r
}

// A gateway sends the next request to another replica, so that a runtime may send it immediately.
func TestNotLeadingBehindAGateway(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "runtimes")
	peers := listener.FromXFCC(listener.InsecureAnyProxy(), ca.roots(), listener.PeerOptions{})
	follower := followerHandler{func(context.Context, core.Delivery) error { return core.ErrNotReady }}
	l := newListener(t, peers, listener.InsecureAllowAll(), follower, listener.Options{})
	request := post(contract.V2.Path(manager), bodyV2)
	request.Header.Set(headerXFCC, ca.client(t, string(runtimeA)).header())
	answer := serve(l, request).Result()
	wait := answer.Header.Get("Retry-After")

	closes := answer.Header.Get("Connection")
	if answer.StatusCode != http.StatusServiceUnavailable || wait != "" || closes != "close" {
		t.Errorf("answer %d, Retry-After %q, Connection %q, want 503 with close and without a wait", answer.StatusCode, wait, closes)
	}
}

// followerHandler is a handler of a replica that does not lead.
type followerHandler struct{ core.HandlerFunc }

func (followerHandler) Ready() error { return core.ErrNotReady }
