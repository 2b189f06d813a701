package fleet

import (
	"cmp"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// maxReplicas bounds the replicas of a runtime: it is foreign input.
const maxReplicas = 8

type key struct {
	runtime core.RuntimeID
	manager core.Manager
}

// record is the knowledge of one runtime for one manager. The fleet's lock guards it.
type record struct {
	key

	state      State
	reason     Reason
	since      time.Time
	expected   time.Time // since when, zero if it is not
	first      time.Time // request
	lastSeen   time.Time
	heartbeats bool // ever had one
	refused    refusal
	// sender is the last one that was not revoked when it sent.
	sender   *sender
	replicas []*replica
	// resend is the last one for replicas that a new fleet does not know, that left, or that were
	// removed before theirs was due.
	resend resync
}

// observe returns the cause for a resync, "" if there is none.
func (r *record) observe(
	peer core.Peer, batch *core.Batch, refused core.EventErrors, opts *Options, now time.Time,
) (cause hook.ResyncCause) {
	r.refused = refusal{}
	if p := r.observed(batch, refused); p != nil {
		if p.keep(batch, refused) {
			return CauseGap
		}
		return ""
	}

	// A new epoch may send events before its first heartbeat: the runtime is stale, but not silent.
	if state, _ := r.judge(opts, now); state == Stale && !r.isSpeaking(now) {
		cause = CauseReturned
		r.disprove()
	}

	r.first, r.lastSeen = cmp.Or(r.first, now), now
	r.sender = newSender(peer, r.sender)

	if batch.Epoch != "" {
		cause = cmp.Or(r.observeReplica(peer, batch, refused, now), cause)
	} else if cause == CauseReturned {
		// An agent without heartbeats took over from one with: it speaks an older contract.
		r.heartbeats = false
		r.dismiss(resendOfLoss(now), func(*replica) bool { return true })
	}

	if cause != "" {
		// The resync to come stands for the pending events of silent replicas, too.
		r.dismiss(resendOfLoss(now), func(p *replica) bool { return p.isSilent(now) })
	}

	return cause
}

// observed returns the replica of a batch that was observed before, if the transport keeps it, or
// has kept an event of it. So it is no sign of life: the process that sent it may have ended long
// ago. It returns nil for any other batch.
func (r *record) observed(batch *core.Batch, refused core.EventErrors) *replica {
	p := r.find(batch.Epoch)
	if batch.Heartbeat != nil || p == nil {
		return nil
	}
	kept := len(batch.Events) == 0
	for i := range batch.Events {
		sequence := batch.Events[i].Sequence
		if sequence > p.sequence {
			return nil
		}
		kept = kept || p.hasKept(sequence) || isKept(refused[i])
	}
	if !kept {
		return nil
	}
	return p
}

// disprove ends all proofs. After a silence, events may come before the heartbeat that reports a
// lost canary.
func (r *record) disprove() {
	for _, p := range r.replicas {
		p.proved = time.Time{}
	}
}

func (r *record) observeReplica(
	peer core.Peer, batch *core.Batch, refused core.EventErrors, now time.Time,
) (cause hook.ResyncCause) {
	p, first := r.replica(batch, now)
	p.sender = r.sender
	cause = p.observe(peer, batch, refused, now)
	if batch.Heartbeat != nil {
		r.heartbeats = true
		r.succeed(p, batch.Heartbeat, now)
	}
	if first {
		return CauseNewEpoch
	}
	return cause
}

func (r *record) replica(batch *core.Batch, now time.Time) (p *replica, first bool) {
	if p := r.find(batch.Epoch); p != nil {
		return p, false
	}
	if len(r.replicas) >= maxReplicas {
		r.evict()
	}
	p = newReplica(batch, now)
	if p.begins || now.Sub(r.first) > straggler {
		p.resend = resync{CauseNewEpoch, now.Add(longestCommit)} // The former life may have reviewed a write.
	} else { // The fleet is new. It does not know which replicas there were.
		r.resend.postpone(CauseNewEpoch, resendOfLoss(now).due)
	}
	r.replicas = append(r.replicas, p)
	return p, true
}

func (r *record) find(epoch string) *replica {
	for _, p := range r.replicas {
		if p.epoch == epoch {
			return p
		}
	}
	return nil
}

// succeed dismisses the former lives of the process that p is one of, and forgets p itself when it
// leaves. A resync replaces the resends that it leaves.
func (r *record) succeed(p *replica, beat *core.Heartbeat, now time.Time) {
	if beat.Leaving {
		if beat.Pending > 0 {
			r.resend.postpone(CauseReplicaLost, now.Add(longestCommit))
		}
		r.remove(p)
		if len(p.kept) > 0 { // Those events come later, and are not of a new process.
			p.gone, p.resend = true, resync{}
			r.replicas = append(r.replicas, p)
		}
		return
	}

	// A former life is silent since p began. Two processes with the same instance by mistake are
	// not. The resync of the new epoch replaces its events, and has its own resend.
	r.dismiss(resync{}, func(other *replica) bool {
		return other != p && other.beat != nil && other.beat.Instance != "" &&
			other.beat.Instance == p.beat.Instance && other.lastSeen.Before(p.first)
	})
}

// dismiss takes replicas for gone, and reports whether there were any. Again is the resend of the
// resync that replaces their events.
func (r *record) dismiss(again resync, gone func(*replica) bool) (dismissed bool) {
	for _, p := range r.replicas {
		if !p.gone && gone(p) {
			dismissed, p.gone, p.resend = true, true, again
			p.shrink()
		}
	}
	return dismissed
}

// lose dismisses replicas that stopped sending while others did not, and reports whether there were
// any: their pending events are lost. They stay while the next heartbeat of each other replica is
// overdue. The runtime may then be cut off as a whole, and all may come back.
func (r *record) lose(now time.Time) bool {
	if !slices.ContainsFunc(r.replicas, func(p *replica) bool { return p.isPunctual(now) }) {
		return false
	}
	return r.dismiss(resendOfLoss(now), func(p *replica) bool { return p.isSilent(now) })
}

// takeResend returns the cause when it is due. The last of several replicas stands for all.
func (r *record) takeResend(now time.Time) (cause hook.ResyncCause) {
	if r.resend.due.After(now) ||
		slices.ContainsFunc(r.replicas, func(p *replica) bool { return p.resend.due.After(now) }) {
		return ""
	}
	cause, r.resend = r.resend.cause, resync{}
	for _, p := range r.replicas {
		cause, p.resend = cmp.Or(p.resend.cause, cause), resync{}
	}
	return cause
}

// evict forgets a replica that is gone, or else the one that is silent for the longest time.
func (r *record) evict() {
	r.remove(slices.MinFunc(r.replicas, func(a, b *replica) int {
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

func (r *record) remove(p *replica) {
	r.resend.postpone(p.resend.cause, p.resend.due)
	r.replicas = slices.DeleteFunc(r.replicas, func(other *replica) bool { return other == p })
}

func (r *record) isSpeaking(now time.Time) bool {
	if slices.ContainsFunc(r.replicas, func(p *replica) bool { return p.isSpeaking(now) }) {
		return true
	}

	// A sender without heartbeats cannot announce that it leaves.
	return !r.heartbeats && !r.sender.isRevoked() && now.Sub(r.lastSeen) <= patience(nil)
}

// sender is the sender of the last batch of a replica, or of a runtime without epochs. The replicas
// of one certificate share it.
type sender struct {
	peer    core.Peer
	revoked bool
}

// newSender returns the last sender if it is the same and not revoked.
func newSender(peer core.Peer, last *sender) *sender {
	if last != nil && !last.revoked && peer.Fingerprint != "" && peer.Fingerprint == last.peer.Fingerprint {
		return last
	}
	peer.Lost = nil // The connection may be long gone.
	return &sender{peer: peer}
}

func (s *sender) isRevoked() bool { return s != nil && s.revoked }

// revoke reports whether it found a sender that it did not know as revoked.
func (r *record) revoke(isRevoked func(core.Peer) bool, now time.Time) (found bool) {
	senders := []*sender{r.sender}
	for _, p := range r.replicas {
		senders = append(senders, p.sender)
	}
	for _, s := range senders {
		if s != nil && !s.revoked && isRevoked(s.peer) {
			s.revoked, found = true, true
			r.refused = refusal{core.ReasonRevoked, now}
		}
	}
	return found
}

// isRevoked reports whether each replica that is not gone has a revoked sender.
func (r *record) isRevoked() bool {
	for _, p := range r.replicas {
		if !p.gone && !p.sender.isRevoked() {
			return false
		}
	}
	return r.sender.isRevoked()
}

func (r *record) hasReplica() bool {
	return slices.ContainsFunc(r.replicas, func(p *replica) bool { return !p.gone })
}

func (r *record) status() Status {
	s := Status{Runtime: r.runtime, Manager: r.manager, State: r.state, Reason: r.reason, Since: r.since, LastSeen: r.lastSeen}
	for _, p := range r.replicas {
		if !p.gone {
			s.Replicas = append(s.Replicas, p.status())
		}
	}
	return s
}
