package simulation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// behaviour has the present faults of the gateway and of the operator's code.
type behaviour struct {
	plan *Plan

	mu     sync.Mutex
	active map[Fault]bool
}

func newBehaviour(plan *Plan) *behaviour {
	return &behaviour{plan: plan, active: make(map[Fault]bool)}
}

func (b *behaviour) set(f Fault, on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if on {
		b.active[f] = true
	} else {
		delete(b.active, f)
	}
}

// find returns an active fault that concerns a runtime and an object, or any of those that are empty.
func (b *behaviour) find(kind FaultKind, runtime core.RuntimeID, object string) (Fault, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for f := range b.active {
		ofRuntime := runtime == "" || b.plan.Runtimes[f.Runtime].Name == string(runtime)
		if f.Kind == kind && ofRuntime && (object == "" || object == b.plan.object(f.Runtime, f.Index)) {
			return f, true
		}
	}
	return Fault{}, false
}

func (b *behaviour) any(kind FaultKind) (Fault, bool) { return b.find(kind, "", "") }

// The places of a panic, as the value of EventPanics.
const (
	inMapFunction = iota
	inVerifier
)

var errBroken = errors.New("the verifier is broken")

// verify returns a verifier with the present faults in front of the real one.
func (b *behaviour) verify(next core.Verifier) core.Verifier {
	return core.VerifierFunc(func(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
		if err := b.refuse(peer.ID, event); err != nil {
			return err
		}
		return next.Verify(ctx, peer, event)
	})
}

func (b *behaviour) refuse(runtime core.RuntimeID, event *core.WatchEvent) error {
	if _, on := b.find(VerifierBroken, runtime, ""); on {
		return errBroken
	}
	if _, on := b.find(SenderForbidden, runtime, ""); on {
		return listener.Forbidden("simulated", "this sender is forbidden")
	}
	if _, on := b.find(SenderUnknown, runtime, ""); on {
		return listener.Unauthenticated("simulated", "this sender is not known")
	}
	if event.Resync {
		return nil
	}
	if f, on := b.find(EventPanics, runtime, event.Watched.Name); on && f.Value == inVerifier {
		panic("simulated panic of a verifier")
	}
	if _, on := b.find(EventForbidden, runtime, event.Watched.Name); on {
		return listener.Forbidden("simulated", "this event is forbidden")
	}
	return nil
}

var errMap = errors.New("the map function fails for this object")

// fail returns the present fault of the map function.
func (b *behaviour) fail(ctx context.Context, d core.Delivery) error {
	if _, on := b.find(MapSlow, d.Runtime, ""); on {
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	if _, on := b.find(MapHangs, d.Runtime, ""); on {
		<-ctx.Done()
		return errMap
	}
	if d.Event.Resync {
		return nil
	}
	if f, on := b.find(EventPanics, d.Runtime, d.Event.Watched.Name); on && f.Value == inMapFunction {
		panic("simulated panic of a map function")
	}
	if _, on := b.find(EventRefused, d.Runtime, d.Event.Watched.Name); on {
		return errMap
	}
	return nil
}

// retryAfterSeconds is the Retry-After of a gateway.
const retryAfterSeconds = 15

// intercept answers a request if the gateway is at fault, and reports whether it did.
func (b *behaviour) intercept(w http.ResponseWriter, r *http.Request) bool {
	if _, on := b.any(GatewayRefusesV3); on && strings.HasPrefix(r.URL.Path, "/v3/") {
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, "RBAC: access denied")
		return true
	}
	if _, on := b.any(GatewayDrops); on {
		w.WriteHeader(http.StatusAccepted)
		return true
	}
	if f, on := b.any(GatewayLimits); on && r.ContentLength > int64(f.Value) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return true
	}
	if f, on := b.any(GatewayRetryAfter); on {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfterSeconds))
		w.WriteHeader(f.Value)
		return true
	}
	if f, on := b.any(GatewayStatus); on {
		w.WriteHeader(f.Value)
		_, _ = fmt.Fprint(w, "upstream trouble")
		return true
	}
	return false
}
