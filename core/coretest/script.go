package coretest

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// The names in the script of [ScriptedParts].
const (
	coldRuntime      core.RuntimeID = "cold-runtime"
	forbiddenRuntime core.RuntimeID = "forbidden-runtime"
	forbiddenName                   = "forbidden"
	lateName                        = "late"
)

// ScriptedParts returns the parts of a receiver that follows a script, with a fleet. The
// operator gets each event that they accept. The verifier is not ready for cold-runtime, refuses
// all of forbidden-runtime, and the objects forbidden and forbidden-too. It panics at unverifiable.
// The handler panics at unhandled, fails at failing, and is not ready at the first event of late.
func ScriptedParts(operator core.Handler) (ReceiverParts, error) {
	watched, err := fleet.New(fleet.Options{})
	if err != nil {
		return ReceiverParts{}, err
	}
	s := &script{operator: operator}
	return ReceiverParts{
		Verifier: core.VerifierFunc(s.verify),
		Handlers: map[core.Manager]core.Handler{receiverManager: core.HandlerFunc(s.handle)},
		Fleet:    watched,
	}, nil
}

type script struct {
	operator core.Handler
	late     atomic.Bool
}

func (s *script) verify(_ context.Context, peer core.Peer, event *core.WatchEvent) error {
	switch {
	case peer.ID == coldRuntime:
		return core.ErrNotReady
	case peer.ID == forbiddenRuntime, strings.HasPrefix(event.Watched.Name, forbiddenName):
		return core.ErrForbidden
	case event.Watched.Name == "unverifiable":
		panic("made by the test")
	default:
		return nil
	}
}

func (s *script) handle(ctx context.Context, d core.Delivery) error {
	switch name := d.Event.Watched.Name; {
	case name == "unhandled":
		panic("made by the test")
	case name == "failing":
		return Refusal{Label: "map_failed", Permanent: true}.Err()
	case name == lateName && !s.late.Swap(true):
		return core.ErrNotReady
	default:
		return s.operator.Handle(ctx, d)
	}
}

// Refusal is a refusal with every classification that core knows, for scripts.
type Refusal struct {
	// Permanent is whether no later attempt can succeed.
	Permanent bool
	// After is the wait that the receiver asks for; 0: none.
	After time.Duration
	// Label is the metric label.
	Label string
	// Cause is the error that it wraps; nil: none.
	Cause error
}

// Err returns the refusal as an error.
func (r Refusal) Err() error { return &refusal{r} }

type refusal struct{ Refusal }

func (r *refusal) Error() string {
	if r.Cause == nil {
		return "scripted refusal: " + r.Label
	}
	return "scripted refusal: " + r.Label + ": " + r.Cause.Error()
}

func (r *refusal) Unwrap() error             { return r.Cause }
func (r *refusal) Retryable() bool           { return !r.Permanent }
func (r *refusal) RetryAfter() time.Duration { return r.After }
func (r *refusal) Reason() string            { return r.Label }
