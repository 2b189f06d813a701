package fleet

import (
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
	resync   *resync
}

type replica struct {
	epoch    string
	sequence uint64
	heard    time.Time
	beat     *core.Heartbeat
	beatAt   time.Time
	dropping time.Time // until when a drop counts as one that just happened
}

// hear takes in what a runtime sent, and returns why it should be looked at as a whole, "" if there is no reason.
func (r *record) hear(events []core.WatchEvent, opts *Options, now time.Time) (cause string) {
	if state, _ := r.judge(opts, now); state == Stale {
		cause = CauseReturned
	}

	r.heard = now

	for i := range events {
		event := &events[i]
		if event.Epoch == "" {
			continue
		}

		p, first := r.replica(event)
		if why := p.hear(event, now); why != "" {
			cause = why
		}

		if first {
			cause = CauseNewEpoch
		}

		if event.Heartbeat != nil {
			r.succeed(p)
		}
	}

	if cause != "" {
		// The resync to come stands for what silent replicas may have taken with them, too.
		r.drop(func(p *replica) bool { return p.silent(opts, now) })
	}

	return cause
}

// succeed removes the replica that p follows, and p itself when it takes its leave.
func (r *record) succeed(p *replica) {
	r.beats = true
	r.drop(func(other *replica) bool {
		if other == p {
			return p.beat.Leaving
		}

		return other.beat != nil && other.beat.Instance != "" && other.beat.Instance == p.beat.Instance
	})
}

func (r *record) drop(gone func(*replica) bool) (dropped bool) {
	before := len(r.replicas)
	r.replicas = slices.DeleteFunc(r.replicas, gone)

	return len(r.replicas) < before
}

// lose removes replicas that fell silent while others did not, and reports whether there were any: what was pending
// there is lost. Those of a runtime that is silent as a whole stay, to be known again.
func (r *record) lose(opts *Options, now time.Time) bool {
	silent := func(p *replica) bool { return p.silent(opts, now) }
	if !slices.ContainsFunc(r.replicas, func(p *replica) bool { return p.beat != nil && !silent(p) }) {
		return false
	}

	return r.drop(silent)
}

// replica returns the sender of an event, and whether it was unknown.
func (r *record) replica(event *core.WatchEvent) (p *replica, first bool) {
	for _, p := range r.replicas {
		if p.epoch == event.Epoch {
			return p, false
		}
	}

	if len(r.replicas) >= maxReplicas {
		r.replicas = slices.Delete(r.replicas, 0, 1)
	}

	p = &replica{epoch: event.Epoch}
	if event.Sequence > 0 {
		p.sequence = event.Sequence - 1 // What came before is what the resync of a new epoch stands for.
	}

	r.replicas = append(r.replicas, p)

	return p, true
}

func (p *replica) hear(event *core.WatchEvent, now time.Time) (reason string) {
	p.heard = now

	if event.Heartbeat != nil {
		return p.hearBeat(event.Heartbeat, now)
	}

	if event.Sequence > p.sequence+1 {
		reason = CauseGap
	}

	p.sequence = max(p.sequence, event.Sequence)

	return reason
}

func (p *replica) hearBeat(beat *core.Heartbeat, now time.Time) (reason string) {
	if p.beat != nil && beat.Number <= p.beat.Number && now.Sub(p.beatAt) < straggler {
		return "" // Overtaken, or sent twice: it says nothing that is not known better.
	}

	if p.beat != nil && drops(beat) > drops(p.beat) {
		p.dropping = now.Add(time.Duration(DefaultMissedHeartbeats) * interval(beat))
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
		if p.beat != nil && !p.silent(opts, now) {
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
	return now.Sub(p.heard) > time.Duration(opts.MissedHeartbeats)*interval(p.beat)
}

// trouble returns why the replica is degraded, "" when it is not.
func (p *replica) trouble(opts *Options, now time.Time) string {
	switch expiry := p.beat.CertificateExpiry; {
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
	case !expiry.IsZero() && expiry.Sub(now) < opts.ExpiringWithin:
		return ReasonCertificateExpiring
	default:
		return ""
	}
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
		s.Replicas = append(s.Replicas, Replica{Epoch: p.epoch, Sequence: p.sequence, Heard: p.heard, Heartbeat: p.beat})
	}

	return s
}
