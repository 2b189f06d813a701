package core

import "time"

// CanaryState is the result of an agent's canary: whether the API server calls the agent.
type CanaryState string

const (
	// CanaryOff means that the agent has no canary.
	CanaryOff CanaryState = ""
	// CanaryAlive means that the API server calls the agent.
	CanaryAlive CanaryState = "alive"
	// CanaryLost means that the API server does not call the agent: changes are missed.
	CanaryLost CanaryState = "lost"
	// CanaryFailing means that the write of the canary itself fails: the state is not known.
	CanaryFailing CanaryState = "failing"
)

// Heartbeat is the state of one agent process, as far as one manager is concerned. Its JSON form is
// that of the status page, which adds the times. The wire contract has one of its own.
type Heartbeat struct {
	// ID differs for all heartbeats of a source. Time is the time at which the heartbeat was made.
	ID   string    `json:"-"`
	Time time.Time `json:"-"`
	// Number counts the heartbeats of this epoch to this manager, from 1. A receiver ignores a
	// heartbeat with a lower number than the last one.
	Number uint64 `json:"number"`
	// Interval is the longest time until the next heartbeat.
	Interval time.Duration `json:"-"`
	// Instance distinguishes the replicas of an agent. It survives a restart of the process.
	Instance string `json:"instance,omitempty"`
	// Leaving means that this is the last heartbeat of the epoch. Pending is then the number of
	// resends that are not sent any more. A resync replaces them.
	Leaving bool `json:"-"`

	// Sequence is the last number that was given to an event before this heartbeat.
	Sequence uint64 `json:"-"`
	// Pending is the number of events that are not acknowledged. OldestPending is the age of the
	// oldest one, without those that the manager has refused for themselves.
	Pending       int64         `json:"pending"`
	OldestPending time.Duration `json:"-"`
	// Dropped counts the events of this epoch that were given up, by reason.
	Dropped map[Reason]int64 `json:"dropped,omitempty"`

	// Version is that of the agent.
	Version string `json:"version,omitempty"`
	// CertificateFingerprint and CertificateExpiry describe the client certificate, CAFingerprints
	// the CA bundle that the agent trusts. Fingerprints are SHA-256 of the DER bytes in lower-case
	// hex.
	CertificateFingerprint string    `json:"certificateFingerprint,omitempty"`
	CertificateExpiry      time.Time `json:"certificateExpiry,omitzero"`
	CAFingerprints         []string  `json:"caFingerprints,omitempty"`
	// KeyMaterialError is why new key material is not in use. It is empty when there is none or it
	// is.
	KeyMaterialError string `json:"keyMaterialError,omitempty"`
	// Canary is the state of the canary.
	Canary CanaryState `json:"canary,omitempty"`
	// CanaryError is why the write of the canary fails, or which of several API servers does not
	// call the agent. It is empty otherwise.
	CanaryError string `json:"canaryError,omitempty"`
	// WebhookError is how the webhooks that the API server has differ from those that were applied.
	// It is empty when they do not differ, and when the agent does not compare them.
	WebhookError string `json:"webhookError,omitempty"`
	// LastReview is the time of the last review of a watched object by the proved API server. It is
	// zero when there was none, and when the webhook requests no client certificate.
	LastReview time.Time `json:"lastReview,omitzero"`
	// WebhookFailures counts the failed TLS handshakes at the webhook in this epoch.
	WebhookFailures int64 `json:"webhookFailures,omitempty"`
	// ConfigHash changes with the agent's configuration.
	ConfigHash string `json:"configHash,omitempty"`
	// ConfigError is why new configuration is not in use, such as a broken file with managers, or
	// why changes for the manager are not seen. It is empty when all is well.
	ConfigError string `json:"configError,omitempty"`
	// Interruption is the last time for which the manager accepted nothing. It is zero when there
	// was none in this epoch.
	Interruption Interruption `json:"interruption,omitzero"`
}

// Interruption is why a manager accepted nothing, and for how long. No heartbeat can report an
// interruption that lasts. Interruptions of less than 1 s do not count.
type Interruption struct {
	// Reason and Error are those of the last failed call.
	Reason Reason `json:"reason"`
	Error  string `json:"error,omitempty"`
	// Since is the time of the first failure, Until that of the first call that did not fail.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}
