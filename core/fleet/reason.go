package fleet

// Reason says why a runtime is degraded or, if the reason is known, stale.
type Reason string

// The reasons for which a silent runtime is stale, if one is known.
const (
	// ReasonRefused means that the verifier refuses the runtime. [Status].Refused contains the
	// reason of the verifier.
	ReasonRefused Reason = "refused"
	// ReasonRevoked means that the certificate or a name of the last sender is on the list of
	// revoked senders.
	ReasonRevoked Reason = "revoked"
	// ReasonStopped means that each agent has sent its last heartbeat, as in a clean shutdown.
	ReasonStopped Reason = "stopped"
)

// The reasons for which a runtime is degraded, worst first.
const (
	// ReasonWebhookUnreachable means that TLS handshakes at the webhook fail and no authenticated
	// call has arrived since.
	ReasonWebhookUnreachable Reason = "webhook_unreachable"
	// ReasonCanaryLost means that the API server does not call the agent for its canary.
	ReasonCanaryLost Reason = "canary_lost"
	// ReasonWebhookChanged means that the webhooks in the API server differ from the webhooks that
	// were applied: for some writes the API server does not call the agent.
	ReasonWebhookChanged Reason = "webhook_changed"
	// ReasonCanaryFailing means that the write of the canary fails.
	ReasonCanaryFailing Reason = "canary_failing"
	// ReasonDropping means that the agent drops events.
	ReasonDropping Reason = "dropping"
	// ReasonPendingTooLong means that an event has waited longer than [Options].PendingTooLong.
	ReasonPendingTooLong Reason = "pending_too_long"
	// ReasonKeyMaterial means that the agent does not use new key material.
	ReasonKeyMaterial Reason = "key_material"
	// ReasonConfiguration means that the agent does not use new configuration, such as a file of
	// managers, or cannot establish a watch.
	ReasonConfiguration Reason = "configuration"
	// ReasonCertificateExpiring means that the client certificate expires within a day and within a
	// sixth of its lifetime.
	ReasonCertificateExpiring Reason = "certificate_expiring"
	// ReasonSharedByReplicas means that other replicas of the operator receive some of the
	// requests, as without leader election. Gaps then cause no resync, and the runtime becomes
	// stale after eight times the usual silence.
	ReasonSharedByReplicas Reason = "shared_by_replicas"
)
