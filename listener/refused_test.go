package listener_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
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

// Also when all events are refused for themselves, each is named: the others of the runtime go on.
func TestAllRefusedEventsAreNamed(t *testing.T) {
	t.Parallel()
	missing := listener.Forbidden(reasons.OwnerMissing, "inside")
	broken := errors.New("inside")
	tests := []struct {
		name   string
		verify core.Verifier
		handle error
		want   contract.Refusal
	}{
		{
			"by the verifier", refuseChanges(missing, nil), nil,
			contract.Refusal{Status: http.StatusForbidden, Reason: reasons.OwnerMissing},
		},
		{
			"by the verifier, which does not know the runtime yet", refuseChanges(missing, core.ErrNotReady), nil,
			contract.Refusal{Status: http.StatusForbidden, Reason: reasons.OwnerMissing},
		},
		{
			"by the handler", listener.InsecureAllowAll(), broken,
			contract.Refusal{Status: http.StatusServiceUnavailable, Reason: "other"},
		},
		{
			"by the handler, of a runtime with a forbidden resync", refuseChanges(nil, missing), broken,
			contract.Refusal{Status: http.StatusServiceUnavailable, Reason: "other"},
		},
		{
			"by a handler that asks to wait for ever", listener.InsecureAllowAll(), waitError(1 << 62),
			contract.Refusal{Status: http.StatusServiceUnavailable, Reason: "other", RetryAfter: 5 * time.Minute},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			handler := core.HandlerFunc(func(context.Context, core.Delivery) error { return test.handle })
			l := newListener(t, listener.PeersFunc(named), test.verify, handler, listener.Options{})
			w := serve(l, batchFrom(t, runtimeA, changes(runtimeA, 2)))
			reply{w.Code, w.Header(), w.Body.String()}.wantPartial(t, 2, map[int]contract.Refusal{0: test.want, 1: test.want})
		})
	}
}

// A panic of the verifier in judging the sender costs no event its own answer.
func TestPanicInJudgingTheSender(t *testing.T) {
	t.Parallel()
	verify := core.VerifierFunc(func(_ context.Context, _ core.Peer, event *core.WatchEvent) error {
		if event.Resync {
			panic("inside")
		}
		return listener.Forbidden(reasons.OwnerMissing, "inside")
	})
	l := newListener(t, listener.PeersFunc(named), verify, &recorder{}, listener.Options{})
	w := serve(l, batchFrom(t, runtimeA, change(runtimeA, 1)))
	reply{w.Code, w.Header(), w.Body.String()}.wantPartial(t, 1, map[int]contract.Refusal{
		0: {Status: http.StatusForbidden, Reason: reasons.OwnerMissing},
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

// readyHandler is a handler of a replica that leads.
type readyHandler struct{ core.HandlerFunc }

func (readyHandler) Ready() error { return nil }

// One object that the operator does not know yet must not hold up all others.
func TestEventThatIsNotReadyBelongsToItself(t *testing.T) {
	t.Parallel()
	cold := fmt.Errorf("%w: not in the cache", core.ErrNotReady)
	handler := readyHandler{func(_ context.Context, d core.Delivery) error {
		if d.Event.Watched.Name == "2" {
			return cold
		}
		return nil
	}}
	l := newListener(t, listener.PeersFunc(named), listener.InsecureAllowAll(), handler, listener.Options{})
	w := serve(l, batchFrom(t, runtimeA, changes(runtimeA, 5)))
	answer := contract.DecodeAnswer(w.Code, w.Body.Bytes(), 5)
	if len(answer.Failed) != 1 || answer.Reason != reasons.Partial || w.Header().Get("Connection") == "close" {
		t.Errorf("answer %d %s, want one refused event of five on a connection that stays open", w.Code, w.Body)
	}
}

// named503 is an error with a reason for each event.
type named503 string

func (n named503) Error() string { return "inside" }

func (n named503) Reason() string { return "first_" + string(n) }

// The fleet observes a runtime also if its events are refused for themselves, but no heartbeat that
// the verifier refuses.
func TestFleetObservesRefusedEvents(t *testing.T) {
	t.Parallel()
	refused := listener.Forbidden(reasons.OwnerMissing, "inside")
	panics := core.HandlerFunc(func(context.Context, core.Delivery) error { panic("inside") })
	tests := []struct {
		name      string
		verify    core.Verifier
		handler   core.Handler
		heard     bool
		heartbeat bool
	}{
		{"changes are refused", refuseChanges(refused, nil), &recorder{}, true, true},
		{"the heartbeat is refused", refuseChanges(nil, refused), &recorder{}, true, false},
		{"everything is refused", refuseChanges(refused, refused), &recorder{}, false, false},
		{"the handler panics", listener.InsecureAllowAll(), panics, true, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			watched := newFleet(t, fleet.Options{})
			l := newListener(t, listener.PeersFunc(named), test.verify, test.handler, listener.Options{Fleet: watched})
			serve(l, batchFrom(t, runtimeA, change(runtimeA, 1), heartbeat(runtimeA, 1)))
			s := watched.Get(runtimeA, manager)
			beats := len(s.Replicas) == 1 && s.Replicas[0].Heartbeat != nil
			if heard := !s.LastSeen.IsZero(); heard != test.heard || beats != test.heartbeat {
				t.Errorf("observed: %v, with heartbeat: %v, want %v and %v", heard, beats, test.heard, test.heartbeat)
			}
		})
	}
}

// A verifier may panic for an event, and know its sender. Without the number of that event, the next heartbeat would
// show a gap.
func TestFleetObservesAnEventForWhichTheVerifierPanics(t *testing.T) {
	t.Parallel()
	verify := core.VerifierFunc(func(_ context.Context, _ core.Peer, event *core.WatchEvent) error {
		if !event.Resync {
			panic("inside")
		}
		return nil
	})
	watched := newFleet(t, fleet.Options{})
	l := newListener(t, listener.PeersFunc(named), verify, &recorder{}, listener.Options{Fleet: watched})
	w := serve(l, batchFrom(t, runtimeA, change(runtimeA, 7)))
	reply{w.Code, w.Header(), w.Body.String()}.wantPartial(t, 1, map[int]contract.Refusal{
		0: {Status: http.StatusServiceUnavailable, Reason: reasons.Panic},
	})
	if s := watched.Get(runtimeA, manager); len(s.Replicas) != 1 || s.Replicas[0].Sequence != 7 {
		t.Errorf("status %+v, want a replica with sequence 7", s)
	}
}

// followerHandler is a handler of a replica that does not lead.
type followerHandler struct{ core.HandlerFunc }

func (followerHandler) Ready() error { return core.ErrNotReady }

// Only the fleet of the leader counts. If a replica that does not lead refused an event, the leader would miss its
// number, and the next heartbeat would show a gap.
func TestFollowerRefusesNoSingleEvent(t *testing.T) {
	t.Parallel()
	forbidden := listener.Forbidden(reasons.OwnerMissing, "inside")
	for name, test := range map[string]struct {
		verify core.Verifier
		status int
		reason string
	}{
		"the event is at fault":  {refuseChanges(forbidden, nil), http.StatusServiceUnavailable, reasons.NotReady},
		"the sender is at fault": {refuseChanges(forbidden, forbidden), http.StatusForbidden, reasons.OwnerMissing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watched := newFleet(t, fleet.Options{})
			handler := followerHandler{func(context.Context, core.Delivery) error { return core.ErrNotReady }}
			l := newListener(t, listener.PeersFunc(named), test.verify, handler, listener.Options{Fleet: watched})
			w := serve(l, batchFrom(t, runtimeA, changes(runtimeA, 2)))
			reply{w.Code, w.Header(), w.Body.String()}.want(t, test.status, test.reason)
			if s := watched.Get(runtimeA, manager); !s.LastSeen.IsZero() {
				t.Errorf("status %+v, want no observation", s)
			}
		})
	}
}
