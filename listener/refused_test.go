package listener_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// refuseChanges returns a verifier that refuses changes with one error, and a resync of the runtime
// with another.
func refuseChanges(change, resync error) core.VerifierFunc {
	return func(_ context.Context, _ core.Peer, event *core.WatchEvent) error {
		if event.Resync {
			return resync
		}
		return change
	}
}

// Each refused event has the status, the reason and the wait of its failure.
func TestRefusedEventsAreNamed(t *testing.T) {
	t.Parallel()
	handler := core.HandlerFunc(func(context.Context, core.Delivery) error { return waitError(1 << 62) })
	verify := core.VerifierFunc(func(_ context.Context, _ core.Peer, event *core.WatchEvent) error {
		if event.Watched.Name == "1" {
			return listener.Forbidden(reasons.OwnerMissing, "inside")
		}
		return nil
	})
	l := newListener(t, listener.PeersFunc(named), verify, handler, listener.Options{})
	w := serve(l, batchFrom(t, runtimeA, changes(runtimeA, 2)))
	reply{w.Code, w.Header(), w.Body.String()}.wantPartial(t, 2, map[int]contract.Refusal{
		0: {Status: http.StatusForbidden, Reason: reasons.OwnerMissing},
		1: {Status: http.StatusServiceUnavailable, Reason: "other", RetryAfter: 5 * time.Minute},
	})
}

// A failure that belongs to the sender or to this replica is the answer to the request.
func TestFailuresOfTheSenderAndOfTheReplica(t *testing.T) {
	t.Parallel()
	stranger := listener.Forbidden(reasons.SANMismatch, "inside")
	revoked := listener.Unauthenticated("revoked", "inside")
	notLeading := func(n string) error { return fmt.Errorf("%w: %w", named503(n), core.ErrNotReady) }
	tests := []struct {
		name   string
		verify core.Verifier
		handle func(name string) error
		status int
		reason string
		closes bool
	}{
		{"sender that is forbidden", refuseChanges(stranger, stranger), nil, 403, reasons.SANMismatch, false},
		{"sender with a revoked certificate", refuseChanges(revoked, revoked), nil, 401, "revoked", false},
		{"verifier that is not ready", refuseChanges(core.ErrNotReady, core.ErrNotReady), nil, 503, reasons.NotReady, false},
		{"handler that is not ready", listener.InsecureAllowAll(), notLeading, 503, "first_1", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			handler := core.HandlerFunc(func(_ context.Context, d core.Delivery) error { return test.handle(d.Event.Watched.Name) })
			l := newListener(t, listener.PeersFunc(named), test.verify, handler, listener.Options{})
			w := serve(l, batchFrom(t, runtimeA, changes(runtimeA, 20)))
			reply{w.Code, w.Header(), w.Body.String()}.want(t, test.status, test.reason)
			if closes := w.Header().Get("Connection") == "close"; closes != test.closes {
				t.Errorf("closes the connection: %v, want %v", closes, test.closes)
			}
		})
	}
}

// named503 is an error with a reason for each event.
type named503 string

func (n named503) Error() string { return "inside" }

func (n named503) Reason() string { return "first_" + string(n) }

// followerHandler is a handler of a replica that does not lead.
type followerHandler struct{ core.HandlerFunc }

func (followerHandler) Ready() error { return core.ErrNotReady }
