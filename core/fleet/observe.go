package fleet

import (
	"cmp"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// observeRequest takes in a request of the runtime. It returns the cause for a resync, "" without a
// cause.
func (r *record) observeRequest(
	peer core.Peer, batch *core.Batch, refused core.EventErrors, opts *Options, now time.Time,
) (cause hook.ResyncCause) {
	r.lastRefusal = refusal{}
	if p := r.replicaSeenBefore(batch, refused); p != nil {
		p.endResendIfTaken(batch, refused)
		if p.noteKept(batch, refused) {
			return CauseGap
		}
		return ""
	}

	// judge comes before lastSeen changes. A new epoch may send events before its first
	// heartbeat: the runtime is stale, but not silent.
	state, _ := r.judge(opts, now)
	hasReturned := state == Stale && !r.isSpeaking(now)
	if hasReturned {
		cause = CauseReturned
		r.endProofs()
	}

	r.firstRequest = cmp.Or(r.firstRequest, now)
	r.lastSeen = now
	r.sender = newSender(peer, r.sender)

	switch {
	case batch.Epoch != "":
		cause = cmp.Or(r.observeReplica(peer, batch, refused, now), cause)
	case hasReturned:
		// An agent without heartbeats took over from one with: it speaks an older contract.
		r.hadHeartbeat = false
		r.dismissReplicas(resendOfLoss(now), func(*replica) bool { return true })
	}

	if cause != "" {
		// The resync to come replaces the pending events of silent replicas, too.
		r.dismissReplicas(resendOfLoss(now), func(p *replica) bool { return p.isSilent(now) })
	}
	return cause
}

// replicaSeenBefore returns the replica of a batch that was observed before, if the transport keeps
// the batch, or has kept an event of it. Such a batch is no sign of life: the process that sent it
// may have ended long ago. The result is nil for any other batch.
func (r *record) replicaSeenBefore(batch *core.Batch, refused core.EventErrors) *replica {
	p := r.replicaOf(batch.Epoch)
	if batch.Heartbeat != nil || p == nil {
		return nil
	}

	isKeptBatch := len(batch.Events) == 0
	for i := range batch.Events {
		sequence := batch.Events[i].Sequence
		if sequence > p.sequence {
			return nil
		}
		isKeptBatch = isKeptBatch || p.isUpToKept(sequence) || isKept(refused[i])
	}

	if !isKeptBatch {
		return nil
	}
	return p
}

// endProofs ends all proofs. After a silence, events may come before the heartbeat that reports a
// lost canary.
func (r *record) endProofs() {
	for _, p := range r.replicas {
		p.proved = time.Time{}
	}
}

// observeReplica hands the request to the replica of its epoch. It returns the cause for a resync,
// "" without a cause.
func (r *record) observeReplica(
	peer core.Peer, batch *core.Batch, refused core.EventErrors, now time.Time,
) (cause hook.ResyncCause) {
	p, isNew := r.ensureReplica(batch, now)
	p.sender = r.sender
	cause = p.observeRequest(peer, batch, refused, now)

	if batch.Heartbeat != nil {
		r.hadHeartbeat = true
		r.replaceFormer(p, batch.Heartbeat, now)
	}

	if isNew {
		return CauseNewEpoch
	}
	return cause
}

// ensureReplica returns the replica of the epoch, and makes it if necessary.
func (r *record) ensureReplica(batch *core.Batch, now time.Time) (p *replica, isNew bool) {
	if p := r.replicaOf(batch.Epoch); p != nil {
		return p, false
	}
	if len(r.replicas) >= maxReplicas {
		r.evictReplica()
	}

	p = newReplica(batch, now)
	if p.isSeenFromStart || now.Sub(r.firstRequest) > straggler {
		p.resend = resync{CauseNewEpoch, now.Add(longestCommit)} // The former life may have reviewed a write.
	} else { // The fleet is new. It does not know which replicas there were.
		r.resend.postpone(CauseNewEpoch, resendOfLoss(now).due)
	}

	r.replicas = append(r.replicas, p)
	return p, true
}

// replaceFormer dismisses the former lives of the process that p is one of, and forgets p itself
// when it leaves. A resync replaces the resends that it leaves.
func (r *record) replaceFormer(p *replica, heartbeat *core.Heartbeat, now time.Time) {
	if heartbeat.Leaving {
		r.noteLeaving(p, heartbeat, now)
		return
	}

	// A former life is silent since p began. Two processes with the same instance by mistake are
	// not. The resync of the new epoch replaces its events, and has its own resend.
	r.dismissReplicas(resync{}, func(other *replica) bool {
		return other != p && other.isInstance(p.heartbeat.Instance) && other.lastSeen.Before(p.firstRequest)
	})
}

// noteLeaving forgets a replica that has sent its last heartbeat, unless the transport keeps events
// of it. A resync replaces the resends that were left.
func (r *record) noteLeaving(p *replica, heartbeat *core.Heartbeat, now time.Time) {
	if heartbeat.Pending > 0 {
		r.resend.postpone(CauseReplicaLost, now.Add(longestCommit))
	}

	r.removeReplica(p)
	if len(p.kept) > 0 { // Those events come later, and are not of a new process.
		p.gone = true
		p.resend = resync{}
		r.replicas = append(r.replicas, p)
	}
}

// dismissReplicas takes replicas for gone, and reports whether there were any. Again is the resend
// of the resync that replaces their events.
func (r *record) dismissReplicas(again resync, isGone func(*replica) bool) (dismissed bool) {
	for _, p := range r.replicas {
		if !p.gone && isGone(p) {
			dismissed = true
			p.gone = true
			p.resend = again
			p.trimHeartbeat()
		}
	}
	return dismissed
}

// review takes in the time that has passed. It returns the cause for a resync, "" without a cause,
// and the change of freshness since the last review, if it has changed.
func (r *record) review(opts *Options, now time.Time) (cause hook.ResyncCause, change Transition, changed bool) {
	for _, p := range r.replicas {
		p.paths.dropEnded(now)
	}

	if r.dismissLost(now) {
		cause = CauseReplicaLost
	}
	cause = cmp.Or(cause, r.takeResend(now))

	state, reason := r.judge(opts, now)
	if state == r.state && reason == r.reason {
		return cause, Transition{}, false
	}

	change = Transition{From: r.state, Reason: r.reason}
	r.state = state
	r.reason = reason
	r.since = now
	change.To = r.status()
	return cause, change, true
}

// dismissLost dismisses replicas that stopped sending while others did not, and reports whether
// there were any: their pending events are lost. They stay while the next heartbeat of each other
// replica is overdue. The runtime may then be cut off as a whole, and all may come back.
func (r *record) dismissLost(now time.Time) bool {
	if !slices.ContainsFunc(r.replicas, func(p *replica) bool { return p.isPunctual(now) }) {
		return false
	}
	return r.dismissReplicas(resendOfLoss(now), func(p *replica) bool { return p.isSilent(now) })
}

// takeResend returns the cause of the resends when the last of them is due. It replaces all, and
// ends them.
func (r *record) takeResend(now time.Time) (cause hook.ResyncCause) {
	isLater := func(p *replica) bool { return p.resend.due.After(now) }
	if r.resend.due.After(now) || slices.ContainsFunc(r.replicas, isLater) {
		return ""
	}

	cause = r.resend.cause
	r.resend = resync{}
	for _, p := range r.replicas {
		cause = cmp.Or(p.resend.cause, cause)
		p.resend = resync{}
	}
	return cause
}

// evictReplica forgets a replica that is gone, or else the one that is silent for the longest time.
func (r *record) evictReplica() {
	r.removeReplica(slices.MinFunc(r.replicas, func(a, b *replica) int {
		switch {
		case a.gone == b.gone:
			return a.lastSeen.Compare(b.lastSeen)
		case a.gone:
			return -1
		default:
			return 1
		}
	}))
}

func (r *record) removeReplica(p *replica) {
	r.resend.postpone(p.resend.cause, p.resend.due)
	r.replicas = slices.DeleteFunc(r.replicas, func(other *replica) bool { return other == p })
}

// revokeSenders notes the senders that are revoked. It reports whether it found one that it did not
// know as revoked.
func (r *record) revokeSenders(isRevoked func(core.Peer) bool, now time.Time) (found bool) {
	senders := []*sender{r.sender}
	for _, p := range r.replicas {
		senders = append(senders, p.sender)
	}

	for _, s := range senders {
		if s != nil && !s.revoked && isRevoked(s.peer) {
			found = true
			s.revoked = true
			r.lastRefusal = refusal{core.ReasonRevoked, now}
		}
	}
	return found
}
