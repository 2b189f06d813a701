package listener

import (
	"context"
	"net/http"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// Readier is an optional method of a [core.Handler]. A replica of the operator that does not lead
// returns an error that wraps [core.ErrNotReady]. The runtime then connects to another replica,
// until it finds the one that leads. Ready is called before a heartbeat is acknowledged, and when
// Handle returns [core.ErrNotReady]: if Ready returns nil then, the error belongs to the event
// alone.
type Readier interface {
	Ready() error
}

// ready returns why a handler takes no events, if it has a method for that.
func ready(handler core.Handler) error {
	if r, ok := handler.(Readier); ok {
		return r.Ready()
	}
	return nil
}

// isReady reports whether a handler says that it is ready. One without the method does not.
func isReady(handler core.Handler) bool {
	r, ok := handler.(Readier)
	return ok && r.Ready() == nil
}

// observe hands a batch to the fleet, unless the verifier refused all of it or this replica is not
// ready: another replica then observes it. A heartbeat that the verifier did not let pass is left
// out.
func (x *exchange) observe(batch *core.Batch, failed failures) {
	if x.opts.Fleet == nil || !x.verified || x.notReady {
		return
	}
	observed := *batch
	if !x.speaks {
		observed.Heartbeat = nil
	}
	x.opts.Fleet.Observe(x.peer, x.manager, observed, failed.errors())
}

// observeOnly hands a batch to the fleet when there is no slot to deliver it: a runtime is not
// silent while the listener is busy. A heartbeat alone is thereby done. Events are sent again with
// their numbers.
//
// Requests that are only observed have a few slots of their own. Only the verifier can hold these
// up.
func (x *exchange) observeOnly(batch *core.Batch) answer {
	busy := refuse(http.StatusServiceUnavailable, contract.ReasonBusy)

	if x.opts.Fleet == nil {
		return busy
	}

	select {
	case x.observeSlots <- struct{}{}:
		defer func() { <-x.observeSlots }()
	default:
		return busy
	}

	if len(batch.Events) == 0 {
		return x.take(batch)
	}

	x.observeRefused(batch, busy)

	return busy
}

// observeRefused verifies the sender, and hands the fleet a batch in which all events are refused.
func (x *exchange) observeRefused(batch *core.Batch, refused answer) {
	ctx, cancel := context.WithTimeout(x.request.Context(), x.opts.HandleTimeout)
	defer cancel()
	failed := failures{}
	for i := range batch.Events {
		failed[i] = refused
	}
	failed.add(len(batch.Events), x.takeHeartbeat(ctx))
	x.observe(batch, failed)
}
