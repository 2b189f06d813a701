package controllerruntime

import (
	"context"
	"math/rand/v2"
	"time"
	"weak"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// Follow enqueues a runtime that is not fresh any more. Its last reconcile may have asked for a
// long requeue, because it relied on events. The time is random within [fleet.Fleet.RequeueAfter],
// so that a whole fleet that is cut off is spread over that time.
//
// Only changes of manager are followed, and only while the controller runs on this replica. Follow
// does not block, and may be called before the controller starts.
func (s *Source[request]) Follow(watched *fleet.Fleet, manager core.Manager) {
	follows := weak.Make(s) // A fleet may outlive the controller manager of a source.
	watched.OnChange(func(change fleet.Transition) {
		if s := follows.Value(); s != nil && change.From == fleet.Fresh && change.To.Manager == manager {
			s.poll(change.To.Runtime, manager, watched.RequeueAfter(change.To.Runtime))
		}
	})
}

// poll enqueues the requests of a resync of the runtime, each at a random time within a duration.
func (s *Source[request]) poll(runtime core.RuntimeID, manager core.Manager, within time.Duration) {
	to, err := s.open()
	if err != nil {
		return
	}

	// A map function answers from memory.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()

	requests, err := s.requests(ctx, core.Delivery{
		Runtime: runtime, Manager: manager, Event: core.WatchEvent{Resync: true}, Received: time.Now(),
	})
	if err != nil {
		s.opts.Logger.Warn("a runtime that is not fresh any more is not reconciled early",
			"runtime", runtime, "manager", manager, "error", err)
	}

	for _, r := range requests {
		to.addResync(r, rand.N(within)) //nolint:gosec // Jitter is not a secret.
	}
}
