package intake

import (
	"context"
	"errors"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// Request is one batch of an identified sender.
type Request struct {
	// Peer is the sender. Its ID is set.
	Peer core.Peer
	// Manager is the operator that the batch is for.
	Manager core.Manager
	// Batch contains the claims of the sender.
	Batch core.Batch
	// Contract is the contract of the batch. With contract v1 the owner of an event names the
	// runtime.
	Contract contract.Version
	// Wait makes the batch wait for a slot until the context ends. Otherwise a batch without a free
	// slot is refused immediately.
	Wait bool
	// Return offers the failed elements to the sender, with the error that [Intake.Receive]
	// returns, and reports whether the sender owns these elements again. If not, another attempt of
	// the transport delivers them, and the fleet requests a resync. Nil: the answer returns them
	// and always arrives.
	Return func(err error) bool
	// Taken reports whether the handler accepted an event in an earlier attempt of the transport,
	// so that no other attempt is needed. Nil: none.
	Taken func(index int) bool
}

func (r *Request) elements() int {
	if r.Batch.Heartbeat == nil {
		return len(r.Batch.Events)
	}
	return len(r.Batch.Events) + 1
}

// Receive verifies a batch, passes its events to the handler, and reports the batch to the fleet.
// Call it between [Intake.Enter] and [Intake.Leave] for its runtime. It blocks as long as the
// verifier and the handler do, which is at most Options.HandleTimeout if they respect their
// context.
//
// The error follows the rules of [core.Forwarder]. It is nil if the whole batch was accepted, and a
// [*Failure] if nothing was accepted. Otherwise it is [core.EventErrors] with a [*Failure] for each
// element that was not accepted.
func (in *Intake) Receive(ctx context.Context, r *Request) error {
	var v verdict
	in.protect(ctx, func() { v = in.receiveBatch(ctx, r) }, func(err error) {
		v = verdict{Whole: newFailure(err)}
	})
	return v.err()
}

// receiveBatch first refuses each batch that needs neither a slot nor the verifier.
func (in *Intake) receiveBatch(ctx context.Context, r *Request) verdict {
	if f := in.admit(&r.Peer); f != nil {
		return r.refuseBatch(f)
	}

	handler, known := in.handlers[r.Manager]
	switch {
	case !known: // A transport with Return receives only for the managers of its handlers.
		return verdict{Whole: unknownManager(r.Manager)}
	case r.Batch.Source != "" && r.Batch.Source != r.Peer.ID:
		return r.refuseBatch(mismatch(r.Batch.Source))
	}

	if in.opts.Fleet != nil {
		in.opts.Fleet.Receiver().NoteArrival(r.Peer.ID, r.Manager, r.Batch)
	}
	t := &task{Intake: in, Request: r, handler: handler, verifier: ForRequest(in.verifier)}
	if !in.takeSlot(ctx, r.Wait) {
		return t.observeOnly(ctx)
	}
	o, tooFast := t.takeInSlot(ctx)
	if tooFast != nil {
		return r.refuseBatch(tooFast)
	}
	return t.concludeBatch(o)
}

func (r *Request) refuseBatch(f *Failure) verdict {
	if r.Return != nil {
		r.Return(f)
	}
	return verdict{Whole: f}
}

type task struct {
	*Intake
	*Request

	handler  core.Handler
	verifier core.Verifier
}

type outcome struct {
	verdict

	// verified means that the verifier let some element pass, or the sender as a whole.
	verified bool
	// speaks means that the verifier let the sender speak for its runtime as a whole.
	speaks bool
}

func (o *outcome) noteResult(index int, f *Failure) {
	o.verified = o.verified || f == nil || f.passed
	o.addFailure(index, f)
}

func (t *task) takeInSlot(ctx context.Context) (o outcome, tooFast *Failure) {
	defer t.releaseSlot()
	// The batch itself has paid for one element.
	if tooFast := t.chargeShare(Account{Name: string(t.Peer.ID)}, float64(t.elements()-1)); tooFast != nil {
		return o, tooFast
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.HandleTimeout)
	defer cancel()
	return t.takeBatch(ctx), nil
}

// takeBatch verifies and delivers each element. If all of them fail, it asks why: the sender or
// this replica may be the cause.
func (t *task) takeBatch(ctx context.Context) (o outcome) {
	received := t.opts.Now()
	for i := range t.Batch.Events {
		if t.Taken == nil || !t.Taken(i) {
			o.noteResult(i, t.takeEvent(ctx, &t.Batch.Events[i].WatchEvent, received))
		}
	}

	if t.Batch.Heartbeat != nil {
		t.takeHeartbeat(ctx, &o)
	}
	allFailed := len(o.Failed) == t.elements() // Transports refuse a batch without elements.
	if allFailed {
		t.judgeSender(ctx, &o)
		t.blameReplica(ctx, &o)
	}

	o.settleWhole()
	return o
}

func (t *task) takeEvent(ctx context.Context, event *core.WatchEvent, received time.Time) *Failure {
	if f := t.verifyEvent(ctx, event); f != nil {
		return f
	}
	d := core.Delivery{Runtime: t.Peer.ID, Manager: t.Manager, Event: *event, Received: received}
	return t.callHandler(ctx, func() error { return t.handler.Handle(ctx, d) })
}

func (t *task) takeHeartbeat(ctx context.Context, o *outcome) {
	f := t.verifySender(ctx)
	if f == nil {
		o.speaks = true
		f = t.askReady(ctx)
	}
	o.noteResult(len(t.Batch.Events), f)
}

func (t *task) verifySender(ctx context.Context) *Failure {
	return t.verifyEvent(ctx, &core.WatchEvent{Resync: true})
}

// verifyEvent and callHandler turn a panic into a Failure, so that the other elements go on.
func (t *task) verifyEvent(ctx context.Context, event *core.WatchEvent) (f *Failure) {
	t.protect(ctx, func() {
		if err := t.verifier.Verify(ctx, t.Peer, event); err != nil {
			f = unverified(err)
		}
	}, func(err error) { f = newFailure(err) })
	return f
}

func (t *task) askReady(ctx context.Context) *Failure {
	return t.callHandler(ctx, func() error { return t.Ready(t.Manager) })
}

func (t *task) callHandler(ctx context.Context, call func() error) (f *Failure) {
	t.protect(ctx, func() {
		if err := call(); err != nil {
			f = t.handlerFailure(err)
		}
	}, func(err error) { f = newFailure(err) })

	if f != nil {
		f.passed = true
	}
	return f
}

func (t *task) handlerFailure(err error) *Failure {
	f := newFailure(err)
	isFollower := errors.Is(err, core.ErrNotReady) && !t.saysReady()
	if isFollower || t.stopping.Load() {
		f.Fault = FaultOfReplica
		f.class = core.ErrNotReady
	}
	return f
}

// saysReady reports whether the handler has a method Ready, and is ready by it. A handler that says
// so and returns ErrNotReady is busy. Otherwise ErrNotReady means that this replica does not lead,
// also for a handler without Ready, which [Intake.Ready] takes for ready.
func (t *task) saysReady() bool {
	r, ok := t.handler.(core.Readier)
	return ok && r.Ready() == nil
}

// judgeSender asks the verifier for a resync of the runtime after all elements failed: may this
// sender speak for its runtime at all? If the verifier refuses the resync as well, the sender is
// rejected, unless an event was refused with more certainty. If an element failed for another
// reason, such as a panic, the sender may be trusted, but not rejected.
func (t *task) judgeSender(ctx context.Context, o *outcome) {
	allRefused := o.allMatch(func(f *Failure) bool { return f.refused })
	isKnown := o.verified && !allRefused
	if t.Contract.NeedsOwner() || isKnown {
		return
	}

	refusal := t.verifySender(ctx)
	if refusal == nil {
		o.trustSender()
		return
	}

	isLessCertain := refusal.isUnknown() && !o.allMatch((*Failure).isUnknown)
	if allRefused && refusal.refused && !isLessCertain {
		o.blameSender(refusal)
	}
}

func (o *outcome) trustSender() {
	o.speaks = true
	o.verified = true
}

// blameSender makes the refusal of the sender the failure of each element.
func (o *outcome) blameSender(refusal *Failure) {
	refusal.Fault = faultOfSender
	for i := range o.Failed {
		o.Failed[i] = refusal
	}
}

// blameReplica makes the refusal of all events a refusal of this replica, if the replica does not
// lead. The verifier may have refused them before the handler was asked. The fleet of the leader
// needs their numbers, or else the next heartbeat shows a gap.
func (t *task) blameReplica(ctx context.Context, o *outcome) {
	if !o.verified || o.isOfReplica() || len(o.Failed) == 0 {
		return
	}
	if f := t.askReady(ctx); f != nil && f.Fault == FaultOfReplica {
		o.Failed[0] = f // settleWhole makes it the failure of the batch.
	}
}

func (o *outcome) isOfReplica() bool {
	for _, f := range o.Failed {
		if f.Fault == FaultOfReplica {
			return true
		}
	}
	return false
}

func (t *task) concludeBatch(o outcome) verdict {
	returned := true
	if len(o.Failed) > 0 && t.Return != nil {
		returned = t.Return(o.err())
	}
	t.observeBatch(&o, returned)
	return o.verdict
}

// observeBatch hands a batch to the fleet, unless the verifier refused all of it or this replica is
// not ready: another replica then observes it. A heartbeat that the verifier did not let pass is
// left out.
//
// The fleet also learns of a runtime that the verifier refuses as a whole.
func (t *task) observeBatch(o *outcome, returned bool) {
	switch {
	case t.opts.Fleet == nil || o.isOfReplica():
		return
	case o.Whole != nil && o.Whole.Fault == faultOfSender && !o.Whole.isUnknown():
		t.opts.Fleet.Receiver().Refuse(t.Peer.ID, t.Manager, o.Whole.reason)
		return
	case !o.verified:
		return
	}

	observed := t.Batch
	refused := o.eventErrors()
	if !o.speaks {
		observed.Heartbeat = nil
	}

	if !returned {
		for i, err := range refused {
			refused[i] = kept{err}
		}
	}

	t.opts.Fleet.Receiver().Observe(t.Peer, t.Manager, observed, refused)
}

type kept struct{ error }

var _ core.KeptError = kept{}

// Kept implements [core.KeptError]: it informs the fleet.
func (kept) Kept() bool { return true }

// observeOnly hands a batch to the fleet when there is no slot to deliver it: a runtime is not
// silent while the intake is busy. A heartbeat alone is thereby done. Events are sent again with
// their numbers.
//
// A few slots are only for batches that are observed and not delivered. Only the verifier can hold
// these up.
func (t *task) observeOnly(ctx context.Context) verdict {
	if t.opts.Fleet == nil || !try(t.observeSlots) {
		return t.refuseBatch(busy())
	}
	o := t.verifyOnly(ctx)
	<-t.observeSlots // Offering the failures may take a while.
	return t.concludeBatch(o)
}

// verifyOnly verifies the sender for the fleet while no slot is free. All events fail as busy, and
// a heartbeat alone is taken.
func (t *task) verifyOnly(ctx context.Context) (o outcome) {
	ctx, cancel := context.WithTimeout(ctx, t.opts.HandleTimeout)
	defer cancel()
	if len(t.Batch.Events) == 0 {
		return t.takeBatch(ctx)
	}

	for i := range t.Batch.Events {
		o.addFailure(i, busy())
	}

	t.takeHeartbeat(ctx, &o)
	o.Whole = busy()
	return o
}
