package fleet

import (
	"cmp"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Bounds on what a runtime says of itself: it is foreign input.
const (
	maxReplicas     = 8
	minInterval     = time.Second
	maxInterval     = time.Hour
	defaultInterval = 30 * time.Second
	// straggler is longer than any request can be under way: what is older and comes later is no straggler.
	straggler = time.Minute
)

type key struct {
	runtime core.RuntimeID
	manager core.Manager
}

// record is what is known of one runtime for one manager. The fleet's lock guards it.
type record struct {
	key

	state    State
	reason   string
	since    time.Time
	heard    time.Time
	beats    bool // ever had a heartbeat
	replicas []*replica
}

// certificate is the validity of a verified client certificate.
type certificate struct{ notBefore, notAfter time.Time }

type replica struct {
	epoch       string
	sequence    uint64
	first       time.Time // when it was first heard
	heard       time.Time
	beat        *core.Heartbeat
	beatAt      time.Time
	certificate certificate // that it showed last
	dropping    time.Time   // until when a drop counts as one that just happened
	// gone means that it is not expected to be heard again, and that a resync stands for what it may have taken with it. It is only
	// remembered, so that it is known if it is heard again nevertheless.
	gone bool
}

// observe takes in a request of the runtime, and returns the cause for a look at it as a whole, "" if
// there is none.
func (r *record) observe(peer core.Peer, batch *core.Batch, opts *Options, now time.Time) (cause string) {
	if state, _ := r.judge(opts, now); state == Stale {
		cause = CauseReturned
	}

	r.heard = now

	if batch.Epoch != "" {
		cause = cmp.Or(r.observeReplica(peer, batch, opts, now), cause)
	} else if cause == CauseReturned {
		// An agent without heartbeats took over from one with: it speaks an older contract.
		r.beats = false
		r.dismiss(func(*replica) bool { return true })
	}

	if cause != "" {
		// The resync to come stands for what silent replicas may have taken with them, too.
		r.dismiss(func(p *replica) bool { return p.silent(opts, now) })
	}

	return cause
}

func (r *record) observeReplica(peer core.Peer, batch *core.Batch, opts *Options, now time.Time) (cause string) {
	p, first := r.replica(batch, now)
	cause = p.observe(batch, opts, now)
	p.certificate = certificate{peer.NotBefore, peer.NotAfter}

	if batch.Heartbeat != nil {
		r.beats = true
		r.succeed(p)
	}

	if first {
		return CauseNewEpoch
	}

	return cause
}

// succeed dismisses the former lives of the process that p is one of, and forgets p itself when it takes its leave.
func (r *record) succeed(p *replica) {
	if p.beat.Leaving {
		r.replicas = slices.DeleteFunc(r.replicas, func(other *replica) bool { return other == p })

		return
	}

	// A former life is not heard any more. Two processes that call themselves the same by mistake both are.
	r.dismiss(func(other *replica) bool {
		return other != p && other.beat != nil && other.beat.Instance != "" && other.beat.Instance == p.beat.Instance &&
			other.heard.Before(p.first)
	})
}

// dismiss takes replicas for gone, and reports whether there were any.
func (r *record) dismiss(gone func(*replica) bool) (dismissed bool) {
	for _, p := range r.replicas {
		if !p.gone && gone(p) {
			dismissed, p.gone = true, true
			p.slim()
		}
	}

	return dismissed
}

// slim keeps of a replica's heartbeat what it takes to know it again: a fleet remembers many.
func (p *replica) slim() {
	if p.beat == nil {
		return
	}

	p.beat = &core.Heartbeat{
		Number: p.beat.Number, Interval: p.beat.Interval, Sequence: p.beat.Sequence, Instance: p.beat.Instance,
		Canary: p.beat.Canary, Dropped: p.beat.Dropped,
	}
}

// lose dismisses replicas that fell silent while others did not, and reports whether there were any: what was pending
// there is lost. Those of a runtime that is silent as a whole stay, as they may all come back.
func (r *record) lose(opts *Options, now time.Time) bool {
	if !slices.ContainsFunc(r.replicas, func(p *replica) bool { return p.alive(opts, now) }) {
		return false
	}

	return r.dismiss(func(p *replica) bool { return p.silent(opts, now) })
}

// replica returns the sender of a batch, and whether it was unknown.
func (r *record) replica(batch *core.Batch, now time.Time) (p *replica, first bool) {
	for _, p := range r.replicas {
		if p.epoch == batch.Epoch {
			return p, false
		}
	}

	if len(r.replicas) >= maxReplicas {
		r.evict()
	}

	p = &replica{epoch: batch.Epoch, first: now}
	if len(batch.Events) > 0 && batch.Events[0].Sequence > 0 {
		p.sequence = batch.Events[0].Sequence - 1 // The resync of a new epoch stands for those before.
	}

	r.replicas = append(r.replicas, p)

	return p, true
}

// evict forgets the replica that is missed least: one that is gone, or else the one that is silent for longest.
func (r *record) evict() {
	least := slices.MinFunc(r.replicas, func(a, b *replica) int {
		switch {
		case a.gone == b.gone:
			return a.heard.Compare(b.heard)
		case a.gone:
			return -1
		default:
			return 1
		}
	})
	r.replicas = slices.DeleteFunc(r.replicas, func(p *replica) bool { return p == least })
}

func (p *replica) observe(batch *core.Batch, opts *Options, now time.Time) (cause string) {
	p.heard, p.gone = now, false

	for i := range batch.Events {
		sequence := batch.Events[i].Sequence
		if sequence > p.sequence && sequence-p.sequence > 1 {
			cause = CauseGap
		}

		p.sequence = max(p.sequence, sequence)
	}

	if batch.Heartbeat != nil {
		cause = cmp.Or(p.observeHeartbeat(batch.Heartbeat, opts, now), cause)
	}

	return cause
}

func (p *replica) observeHeartbeat(beat *core.Heartbeat, opts *Options, now time.Time) (reason string) {
	if p.beat != nil && beat.Number <= p.beat.Number && now.Sub(p.beatAt) < straggler {
		return "" // Overtaken, or sent twice: it says nothing that is not known better.
	}

	if p.beat != nil && drops(beat) > drops(p.beat) {
		p.dropping = now.Add(patience(opts, beat))
	}

	switch {
	case p.beat == nil && p.sequence == 0: // The first that is heard of this replica.
	case beat.Sequence < p.sequence:
		reason = CauseWentBack
	case beat.Sequence > p.sequence:
		reason = CauseGap
	}

	p.beat, p.beatAt, p.sequence = beat, now, beat.Sequence

	return reason
}

func drops(beat *core.Heartbeat) (n int64) {
	for _, dropped := range beat.Dropped {
		n += dropped
	}

	return n
}

func interval(beat *core.Heartbeat) time.Duration {
	if beat == nil || beat.Interval <= 0 {
		return defaultInterval
	}

	return min(max(beat.Interval, minInterval), maxInterval)
}

// judge returns the state of a record, as of now.
func (r *record) judge(opts *Options, now time.Time) (state State, reason string) {
	alive := false

	for _, p := range r.replicas {
		if p.alive(opts, now) {
			alive = true
			reason = worse(reason, p.trouble(opts, now))
		}
	}

	switch {
	case !r.beats:
		return Unknown, ""
	case !alive:
		return Stale, ""
	case reason != "":
		return Degraded, reason
	default:
		return Fresh, ""
	}
}

func (p *replica) silent(opts *Options, now time.Time) bool {
	return now.Sub(p.heard) > patience(opts, p.beat)
}

// speaks reports whether the replica is heard, by events or heartbeats.
func (p *replica) speaks(opts *Options, now time.Time) bool { return !p.gone && !p.silent(opts, now) }

// speaks reports whether somebody in the runtime still speaks to the manager.
func (r *record) speaks(opts *Options, now time.Time) bool {
	if slices.ContainsFunc(r.replicas, func(p *replica) bool { return p.speaks(opts, now) }) {
		return true
	}

	// Who never had a heartbeat can not take his leave either.
	return !r.beats && now.Sub(r.heard) <= patience(opts, nil)
}

// alive reports whether the replica vouches for the freshness of its runtime.
func (p *replica) alive(opts *Options, now time.Time) bool {
	return p.beat != nil && p.speaks(opts, now)
}

// trusts reports whether the replica has said that it trusts the certificate authority with that fingerprint.
func (p *replica) trusts(fingerprint string) bool {
	return p.beat != nil && slices.Contains(p.beat.CAFingerprints, fingerprint)
}

// patience is how long a replica may be silent.
func patience(opts *Options, beat *core.Heartbeat) time.Duration {
	return time.Duration(opts.MissedHeartbeats) * interval(beat)
}

// trouble returns why the replica is degraded, "" when it is not.
func (p *replica) trouble(opts *Options, now time.Time) string {
	switch {
	case p.beat.Canary == core.CanaryLost:
		return ReasonCanaryLost
	case p.beat.Canary == core.CanaryFailing:
		return ReasonCanaryFailing
	case now.Before(p.dropping):
		return ReasonDropping
	case p.beat.OldestPending > opts.PendingTooLong:
		return ReasonPendingTooLong
	case p.beat.KeyMaterialError != "":
		return ReasonKeyMaterial
	case p.certificate.expiring(opts, now):
		return ReasonCertificateExpiring
	default:
		return ""
	}
}

// expiring reports whether the rest of the validity is short, by itself and for this certificate.
func (c certificate) expiring(opts *Options, now time.Time) bool {
	const part = 6 // cert-manager renews when a third is left.

	return !c.notAfter.IsZero() && c.notAfter.Sub(now) < min(opts.ExpiringWithin, c.notAfter.Sub(c.notBefore)/part)
}

var severity = []string{
	ReasonCanaryLost, ReasonCanaryFailing, ReasonDropping, ReasonPendingTooLong, ReasonKeyMaterial, ReasonCertificateExpiring,
}

func worse(a, b string) string {
	for _, reason := range severity {
		if a == reason || b == reason {
			return reason
		}
	}

	return ""
}

func (r *record) status() Status {
	s := Status{Runtime: r.runtime, Manager: r.manager, State: r.state, Reason: r.reason, Since: r.since, Heard: r.heard}

	for _, p := range r.replicas {
		if p.gone {
			continue
		}

		s.Replicas = append(s.Replicas, Replica{Epoch: p.epoch, Sequence: p.sequence, Heard: p.heard, Heartbeat: p.beat})
	}

	return s
}
