package coretest

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// ReceiverParts are the parts of a receiver under test.
type ReceiverParts struct {
	Verifier core.Verifier
	Handlers map[core.Manager]core.Handler
	Fleet    *fleet.Fleet
}

const (
	receiverManager  core.Manager   = "my-operator"
	coldRuntime      core.RuntimeID = "cold-runtime"
	forbiddenRuntime core.RuntimeID = "forbidden-runtime"
	forbiddenName                   = "forbidden"
	lateName                        = "late"
)

// ScriptedParts returns the parts of a receiver that follows a script, with a fleet. The operator
// gets each event that the parts accept. The verifier is not ready for cold-runtime. It refuses
// every event of forbidden-runtime, and the objects forbidden and forbidden-too. It panics at the
// object unverifiable. The handler panics at the object unhandled, fails at failing, and is not
// ready at the first event of late.
func ScriptedParts(operator core.Handler) (ReceiverParts, error) {
	verify := func(_ context.Context, peer core.Peer, event *core.WatchEvent) error {
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

	var late atomic.Bool
	handle := func(ctx context.Context, d core.Delivery) error {
		name := d.Event.Watched.Name
		switch {
		case name == "unhandled":
			panic("made by the test")
		case name == "failing":
			return Refusal{Label: "map_failed", Permanent: true}.Err()
		case name == lateName && !late.Swap(true):
			return core.ErrNotReady
		default:
			return operator.Handle(ctx, d)
		}
	}

	watched, err := fleet.New(fleet.Options{})
	return ReceiverParts{
		Verifier: core.VerifierFunc(verify),
		Handlers: map[core.Manager]core.Handler{receiverManager: core.HandlerFunc(handle)},
		Fleet:    watched,
	}, err
}
