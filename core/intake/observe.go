package intake

import "context"

// observe hands a batch to the fleet, unless the verifier refused all of it or this replica is not
// ready: another replica then observes it. A heartbeat that the verifier did not let pass is left
// out.
//
// The fleet also learns of a runtime that the verifier refuses as a whole.
func (t *task) observe(o *outcome, returned bool) {
	switch {
	case t.opts.Fleet == nil || o.isOfReplica():
		return
	case o.Whole != nil && o.Whole.Fault == faultOfSender && !o.Whole.isUnknown():
		t.opts.Fleet.Refuse(t.Peer.ID, t.Manager, o.Whole.Reason())
		return
	case !o.verified:
		return
	}
	observed, refused := t.Batch, o.refused()
	if !o.speaks {
		observed.Heartbeat = nil
	}
	if !returned {
		for i, err := range refused {
			refused[i] = kept{err}
		}
	}
	t.opts.Fleet.Observe(t.Peer, t.Manager, observed, refused)
}

// kept is the failure of an event that stays with the transport.
type kept struct{ error }

// Kept informs the fleet.
func (kept) Kept() bool { return true }

// observeOnly hands a batch to the fleet when there is no slot to deliver it: a runtime is not
// silent while the intake is busy. A heartbeat alone is thereby done. Events are sent again with
// their numbers.
//
// Batches that are only observed have a few slots of their own. Only the verifier can hold these
// up.
func (t *task) observeOnly(ctx context.Context) Verdict {
	if t.opts.Fleet == nil || !try(t.observeSlots) {
		return t.refuse(busy())
	}
	o := t.verifyOnly(ctx)
	<-t.observeSlots // Offering the failures may take a while.
	return t.conclude(o)
}

// verifyOnly verifies the sender, and refuses all events.
func (t *task) verifyOnly(ctx context.Context) (o outcome) {
	ctx, cancel := context.WithTimeout(ctx, t.opts.HandleTimeout)
	defer cancel()
	if len(t.Batch.Events) == 0 {
		return t.take(ctx)
	}
	for i := range t.Batch.Events {
		o.add(i, busy())
	}
	t.takeHeartbeat(ctx, &o)
	o.Whole = busy()
	return o
}
