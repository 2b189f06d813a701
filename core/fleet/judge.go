package fleet

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func (r *record) judge(opts *Options, now time.Time) (state State, reason Reason) {
	alive, proved, worst := false, false, len(troubles)
	for _, p := range r.replicas {
		if p.isAlive(now) {
			alive = true
			proved = proved || p.isProved(now)
			worst = min(worst, p.trouble(opts, now))
		}
	}
	switch {
	case !alive && r.isRevoked():
		return Stale, ReasonRevoked
	case r.isMissing(now):
		return Stale, r.silence(now)
	case !r.heartbeats:
		return Unknown, ""
	case !alive:
		return Stale, r.silence(now)
	case worst < len(troubles):
		return Degraded, troubles[worst].reason
	case !proved:
		return Unproved, ""
	default:
		return Fresh, ""
	}
}

func (r *record) silence(now time.Time) Reason {
	switch {
	case r.refusal(now) == core.ReasonRevoked:
		return ReasonRevoked
	case r.refusal(now) != "":
		return ReasonRefused
	case r.heartbeats && !r.hasReplica():
		return ReasonStopped
	default:
		return ""
	}
}

// proofLasts is the time for which a review by a client certificate, or a living canary, proves
// that the API server calls the agent.
const proofLasts = 10 * time.Minute

// isProved lasts for proofLasts, and at least until the next heartbeat is missed.
func (p *replica) isProved(now time.Time) bool {
	return now.Sub(p.proved) <= max(proofLasts, patience(p.beat))
}

// troubles are the reasons for which a replica is degraded, worst first.
var troubles = []struct {
	reason Reason
	has    func(p *replica, opts *Options, now time.Time) bool
}{
	// It explains a lost canary.
	{ReasonWebhookUnreachable, func(p *replica, _ *Options, now time.Time) bool { return now.Before(p.unreachable) }},
	{ReasonCanaryLost, func(p *replica, _ *Options, _ time.Time) bool { return p.beat.Canary == core.CanaryLost }},
	{ReasonWebhookChanged, func(p *replica, _ *Options, _ time.Time) bool { return p.beat.WebhookError != "" }},
	{ReasonCanaryFailing, func(p *replica, _ *Options, _ time.Time) bool { return p.beat.Canary == core.CanaryFailing }},
	{ReasonDropping, func(p *replica, _ *Options, now time.Time) bool { return now.Before(p.dropping) }},
	{ReasonPendingTooLong, func(p *replica, o *Options, _ time.Time) bool { return p.beat.OldestPending > o.PendingTooLong }},
	{ReasonKeyMaterial, func(p *replica, _ *Options, _ time.Time) bool { return p.beat.KeyMaterialError != "" }},
	{ReasonConfiguration, func(p *replica, _ *Options, _ time.Time) bool { return p.beat.ConfigError != "" }},
	{ReasonCertificateExpiring, func(p *replica, _ *Options, now time.Time) bool { return p.certificate.isExpiring(now) }},
	{ReasonSharedByReplicas, func(p *replica, _ *Options, _ time.Time) bool { return p.sharing.on }},
}

// trouble returns the index of the worst reason for which the replica is degraded, and the number
// of all when it is not.
func (p *replica) trouble(opts *Options, now time.Time) int {
	for i := range troubles {
		if troubles[i].has(p, opts, now) {
			return i
		}
	}
	return len(troubles)
}

// isExpiring means that less than a day and less than a sixth of the life is left.
func (c certificate) isExpiring(now time.Time) bool {
	const within, part = 24 * time.Hour, 6 // cert-manager renews when a third is left.
	return !c.notAfter.IsZero() && c.notAfter.Sub(now) < min(within, c.notAfter.Sub(c.notBefore)/part)
}

// Conditions returns every state with every reason that it can have, worst last.
func Conditions() []Condition {
	all := []Condition{
		{State: Fresh},
		{State: Unproved},
		{State: Unknown},
		{Stale, ReasonStopped},
		{State: Stale},
		{Stale, ReasonRefused},
		{Stale, ReasonRevoked},
	}
	for _, trouble := range slices.Backward(troubles) {
		all = append(all, Condition{Degraded, trouble.reason})
	}
	return all
}
