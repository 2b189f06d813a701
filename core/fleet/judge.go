package fleet

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// judge returns the state of a record, as of now.
func (r *record) judge(opts *Options, now time.Time) (state State, reason string) {
	alive, proved := false, false

	for _, p := range r.replicas {
		if p.isAlive(now) {
			alive = true
			proved = proved || p.isProved(now)
			reason = worse(reason, p.trouble(opts, now))
		}
	}

	switch {
	case r.isMissing(now):
		return Stale, r.silence(now)
	case !r.heartbeats:
		return Unknown, ""
	case !alive:
		return Stale, r.silence(now)
	case reason != "":
		return Degraded, reason
	case !proved:
		return Unproved, ""
	default:
		return Fresh, ""
	}
}

// silence returns the reason for which the runtime is stale, "" if it is not known.
func (r *record) silence(now time.Time) string {
	switch {
	case r.refusal(now) != "":
		return reasons.Refused
	case r.heartbeats && !r.hasReplica():
		return reasons.Stopped
	default:
		return ""
	}
}

// proofLasts is the time for which a review by a client certificate, or a living canary, proves
// that the API server calls the agent.
const proofLasts = 10 * time.Minute

// isProved reports whether the API server called the agent lately: within proofLasts, and at least
// until the next heartbeat is missed.
func (p *replica) isProved(now time.Time) bool {
	return now.Sub(p.proved) <= max(proofLasts, patience(p.beat))
}

// trouble returns the reason for which the replica is degraded, "" when it is not.
func (p *replica) trouble(opts *Options, now time.Time) string {
	switch {
	case now.Before(p.unreachable): // It explains a lost canary.
		return reasons.WebhookUnreachable
	case p.beat.Canary == core.CanaryLost:
		return reasons.CanaryLost
	case p.beat.Canary == core.CanaryFailing:
		return reasons.CanaryFailing
	case now.Before(p.dropping):
		return reasons.Dropping
	case p.beat.OldestPending > opts.PendingTooLong:
		return reasons.PendingTooLong
	case p.beat.KeyMaterialError != "":
		return reasons.KeyMaterial
	case p.beat.ConfigError != "":
		return reasons.Configuration
	case p.certificate.isExpiring(now):
		return reasons.CertificateExpiring
	case p.sharing.on:
		return reasons.SharedByReplicas
	default:
		return ""
	}
}

// isExpiring reports whether the rest of the validity is short: less than a day, and less than a
// sixth of the life of this certificate.
func (c certificate) isExpiring(now time.Time) bool {
	const within, part = 24 * time.Hour, 6 // cert-manager renews when a third is left.
	return !c.notAfter.IsZero() && c.notAfter.Sub(now) < min(within, c.notAfter.Sub(c.notBefore)/part)
}

// severity has the reasons, worst first.
func severity() []string {
	return []string{
		reasons.WebhookUnreachable, reasons.CanaryLost, reasons.CanaryFailing, reasons.Dropping, reasons.PendingTooLong,
		reasons.KeyMaterial, reasons.Configuration, reasons.CertificateExpiring, reasons.SharedByReplicas,
	}
}

func worse(a, b string) string {
	for _, reason := range severity() {
		if a == reason || b == reason {
			return reason
		}
	}
	return ""
}

// Conditions returns every state with every reason that it can have, worst last.
func Conditions() []Condition {
	all := []Condition{
		{State: Fresh}, {State: Unproved}, {State: Unknown}, {Stale, reasons.Stopped}, {State: Stale}, {Stale, reasons.Refused},
	}
	for _, reason := range slices.Backward(severity()) {
		all = append(all, Condition{Degraded, reason})
	}
	return all
}
