package fleet

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// moment is a living replica at a time. It has a heartbeat.
type moment struct {
	*replica

	opts *Options
	now  time.Time
}

// troubles are the reasons for which a replica is degraded, worst first.
var troubles = []struct {
	reason Reason
	has    func(moment) bool
}{
	// It explains a lost canary.
	{ReasonWebhookUnreachable, func(m moment) bool { return m.now.Before(m.unreachableUntil) }},
	{ReasonCanaryLost, func(m moment) bool { return m.heartbeat.Canary == core.CanaryLost }},
	{ReasonWebhookChanged, func(m moment) bool { return m.heartbeat.WebhookError != "" }},
	{ReasonCanaryFailing, func(m moment) bool { return m.heartbeat.Canary == core.CanaryFailing }},
	{ReasonDropping, func(m moment) bool { return m.now.Before(m.dropsUntil) }},
	{ReasonPendingTooLong, func(m moment) bool { return m.heartbeat.OldestPending > m.opts.PendingTooLong }},
	{ReasonKeyMaterial, func(m moment) bool { return m.heartbeat.KeyMaterialError != "" }},
	{ReasonConfiguration, func(m moment) bool { return m.heartbeat.ConfigError != "" }},
	{ReasonCertificateExpiring, func(m moment) bool { return m.certificate.isExpiring(m.now) }},
	{ReasonSharedByReplicas, func(m moment) bool { return m.sharing.on }},
}

// trouble returns the index of the worst reason for which the replica is degraded, and the number
// of all when it is not.
func (p *replica) trouble(opts *Options, now time.Time) int {
	m := moment{p, opts, now}
	for i := range troubles {
		if troubles[i].has(m) {
			return i
		}
	}
	return len(troubles)
}
