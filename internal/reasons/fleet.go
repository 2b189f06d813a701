package reasons

// The reasons of a fleet for which a silent runtime is stale, if one is known.
const (
	// Refused means that the verifier refuses the runtime. Status.Refused of the fleet has its
	// reason.
	Refused = "refused"
	// Stopped means that each agent has sent its last heartbeat, as at a clean shutdown.
	Stopped = "stopped"
)

// The reasons of a fleet for which a runtime is degraded, worst first.
const (
	// WebhookUnreachable means that TLS handshakes at the webhook fail, and that no proved
	// call came through since.
	WebhookUnreachable = "webhook_unreachable"
	// CanaryLost means that the API server does not call the agent for its canary.
	CanaryLost = "canary_lost"
	// CanaryFailing means that the write of the canary fails.
	CanaryFailing = "canary_failing"
	// Dropping means that the agent drops events.
	Dropping = "dropping"
	// PendingTooLong means that an event waits for longer than PendingTooLong of its options.
	PendingTooLong = "pending_too_long"
	// KeyMaterial means that the agent does not use new key material.
	KeyMaterial = "key_material"
	// Configuration means that the agent does not use new configuration, such as a file with
	// managers, or cannot establish a watch.
	Configuration = "configuration"
	// CertificateExpiring means that the client certificate expires within a day,
	// and within a sixth of its life.
	CertificateExpiring = "certificate_expiring"
	// SharedByReplicas means that other replicas of the operator take some of the requests,
	// as without leader election. Gaps then lead to no resync, and the runtime is stale after eight
	// times the usual silence.
	SharedByReplicas = "shared_by_replicas"
)
