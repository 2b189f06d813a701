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

// behaviour is how the code of the operator, and the gateway, misbehave at this moment.
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

// find returns an active fault that concerns a runtime, and an object unless that is empty.
func (b *behaviour) find(kind FaultKind, runtime core.RuntimeID, object string) (Fault, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	for f := range b.active {
		if f.Kind != kind || b.plan.Runtimes[f.Runtime].Name != string(runtime) {
			continue
		}

		if object == "" || object == b.plan.object(f.Runtime, f.Index) {
			return f, true
		}
	}

	return Fault{}, false
}

func (b *behaviour) any(kind FaultKind) (Fault, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	for f := range b.active {
		if f.Kind == kind {
			return f, true
		}
	}

	return Fault{}, false
}

// The places of a panic, as the value of EventPanics.
const (
	inMapFunction = iota
	inVerifier
)

var errBroken = errors.New("the verifier is broken")

// verify fails as the faults demand, before the real verifier is asked.
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

// fail makes the map function fail as the faults demand.
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

// longWait is what a gateway asks for, in seconds.
const longWait = 15

// intercept answers for the gateway, and reports whether it did.
func (b *behaviour) intercept(w http.ResponseWriter, r *http.Request) bool {
	if _, on := b.any(GatewayForeign); on && strings.HasPrefix(r.URL.Path, "/v3/") {
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, "RBAC: access denied")

		return true
	}

	if _, on := b.any(GatewayLies); on {
		w.WriteHeader(http.StatusAccepted)

		return true
	}

	if f, on := b.any(GatewayLimits); on && r.ContentLength > int64(f.Value) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)

		return true
	}

	if f, on := b.any(GatewayWaits); on {
		w.Header().Set("Retry-After", strconv.Itoa(longWait))
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
