package listener

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// deliver checks the claim of the batch and hands its events to the handler, if there is a slot.
func (x *exchange) deliver(batch *core.Batch) answer {
	if batch.Source != "" && batch.Source != x.peer.ID {
		return refuseUnverified(
			Forbidden(ReasonSourceMismatch, "the batch claims to come from runtime %.253q", batch.Source))
	}
	if !x.takeSlot() {
		return x.observeOnly(batch)
	}
	defer x.releaseSlot()

	// The request itself has paid for one element.
	if wait, ok := x.shares.charge(x.account(), float64(elements(batch)-1), x.opts.Now()); !ok {
		return x.tooFast(wait)
	}
	return x.take(batch)
}

// take hands every event to the handler, and the batch to the fleet.
func (x *exchange) take(batch *core.Batch) answer {
	ctx, cancel := context.WithTimeout(x.request.Context(), x.opts.HandleTimeout)
	defer cancel()
	failed := x.takeEvents(ctx, batch)
	if batch.Heartbeat != nil {
		failed.add(len(batch.Events), x.takeHeartbeat(ctx))
	}
	if len(failed) == elements(batch) {
		x.judgeSender(ctx, failed)
		x.judgeReplica(failed)
	}
	x.observe(batch, failed)
	return failed.answer(x.version)
}

func elements(batch *core.Batch) int {
	if batch.Heartbeat == nil {
		return len(batch.Events)
	}
	return len(batch.Events) + 1
}

func (x *exchange) takeEvents(ctx context.Context, batch *core.Batch) failures {
	received := x.opts.Now()
	failed := failures{}
	for i := range batch.Events {
		failed.add(i, x.takeEvent(ctx, &batch.Events[i].WatchEvent, received))
	}
	return failed
}

func (x *exchange) takeEvent(ctx context.Context, event *core.WatchEvent, received time.Time) answer {
	if a := x.verify(ctx, event); a.reason != "" {
		return a
	}
	return x.handle(ctx, core.Delivery{Runtime: x.peer.ID, Manager: x.manager, Event: *event, Received: received})
}

// takeHeartbeat verifies that the sender may speak for its runtime. No handler gets a heartbeat.
func (x *exchange) takeHeartbeat(ctx context.Context) answer {
	if a := x.verifySender(ctx); a.reason != "" {
		return a
	}
	return x.askReady()
}

// verifySender asks the verifier whether the peer may speak for its runtime as a whole.
func (x *exchange) verifySender(ctx context.Context) answer {
	a := x.verify(ctx, &core.WatchEvent{Resync: true})
	x.speaks = a.reason == ""
	return a
}

// verify, handle and askReady make a panic the failure of one element: it would otherwise hold up
// the other elements of its batch for ever.
func (x *exchange) verify(ctx context.Context, event *core.WatchEvent) (a answer) {
	defer x.recover(&a)
	if err := x.verifier.Verify(ctx, x.peer, event); err != nil {
		return refuseUnverified(err)
	}
	x.verified = true
	return answer{}
}

func (x *exchange) handle(ctx context.Context, d core.Delivery) (a answer) {
	defer x.recover(&a)
	return x.handled(x.handler.Handle(ctx, d))
}

func (x *exchange) askReady() (a answer) {
	defer x.recover(&a)
	return x.handled(ready(x.handler))
}

func (x *exchange) handled(err error) answer {
	if err == nil {
		return answer{}
	}
	// A listener that stops ends the calls of its handlers, which is no failure of their events.
	if x.state.Load() >= stopping || errors.Is(err, core.ErrNotReady) && !isReady(x.handler) {
		return x.refuseReplica(err)
	}
	return retryLater(err)
}

// refuseReplica refuses the whole request, because this replica may not lead. The sender must
// connect again to find the one that does. Behind a gateway that costs no handshake of the runtime,
// so that it need not wait. A relayed request waits: the next one comes here from any replica.
func (x *exchange) refuseReplica(err error) answer {
	x.notReady = true
	a := retryLater(err)
	a.whole = true
	if x.isRelay {
		a.retryAfter = cmp.Or(a.retryAfter, relayRetry)
		return a
	}
	a.closes = true
	a.atOnce = x.behindGateway() && a.retryAfter == 0
	return a
}

// judgeReplica makes the refusal of all events that of this replica, if it does not lead. The
// verifier may have refused them before the handler was asked. The fleet of the leader needs their
// numbers, or else the next heartbeat shows a gap.
func (x *exchange) judgeReplica(failed failures) {
	if !x.verified || x.notReady || len(failed) == 0 {
		return
	}
	if a := x.askReady(); a.whole {
		failed[0] = a
	}
}

// judgeSender makes the refusal of all elements that of the sender, if the verifier also refuses a
// resync of its runtime. An unknown answer to the resync does not replace the refusal of an event.
// After a panic of the verifier it only notes whether the sender is verified.
func (x *exchange) judgeSender(ctx context.Context, failed failures) {
	unverified := failed.all(func(a answer) bool { return a.unverified })
	if x.version.NeedsOwner() || x.verified && !unverified {
		return
	}
	sender := x.verifySender(ctx)
	if !unverified {
		return
	}
	unknown := func(a answer) bool { return a.status == http.StatusServiceUnavailable }
	if !sender.unverified || unknown(sender) && !failed.all(unknown) {
		return
	}
	sender.whole = true
	for i := range failed {
		failed[i] = sender
	}
}
