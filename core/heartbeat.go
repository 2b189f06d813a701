package core

import "time"

// CanaryState is the result of an agent's canary: whether the API server calls the agent.
type CanaryState string

const (
	// CanaryOff means that the agent has no canary.
	CanaryOff CanaryState = ""
	// CanaryAlive means that the API server calls the agent.
	CanaryAlive CanaryState = "alive"
	// CanaryLost means that the API server does not call the agent, so changes are missed.
	CanaryLost CanaryState = "lost"
	// CanaryFailing means that the write of the canary itself fails, so the state is unknown.
	CanaryFailing CanaryState = "failing"
)

// Heartbeat is the state of one agent process, as far as one manager is concerned. The JSON form is
// for the status page, which adds the times. The wire contract defines a different form.
type Heartbeat struct {
	// ID is different for all heartbeats of a source. Time is the time at which the heartbeat was
	// made.
	ID   string    `json:"-"`
	Time time.Time `json:"-"`
	// Number counts the heartbeats of this epoch to this manager, from 1. A receiver ignores a
	// heartbeat with a lower number than the last heartbeat.
	Number uint64 `json:"number"`
	// Interval is the longest time until the next heartbeat.
	Interval time.Duration `json:"-"`
	// Instance distinguishes the replicas of an agent. It survives a restart of the process.
	Instance string `json:"instance,omitempty"`
	// Leaving means that this is the last heartbeat of the epoch. Pending is then the number of
	// resends that will no longer be sent. A resync replaces these resends.
	Leaving bool `json:"-"`

	// Sequence is the last number that was assigned to an event before this heartbeat.
	Sequence uint64 `json:"-"`
	// Pending is the number of events that are not acknowledged. OldestPending is the age of the
	// oldest pending event, not counting events that the manager has refused individually.
	Pending       int64         `json:"pending"`
	OldestPending time.Duration `json:"-"`
	// Dropped counts the events of this epoch that were given up, by reason.
	Dropped map[Reason]int64 `json:"dropped,omitempty"`

	// Version is the version of the agent.
	Version string `json:"version,omitempty"`
	// CertificateFingerprint and CertificateExpiry describe the client certificate. CAFingerprints
	// describes the CA bundle that the agent trusts. Fingerprints are SHA-256 of the DER bytes in
	// lower-case hex.
	CertificateFingerprint string    `json:"certificateFingerprint,omitempty"`
	CertificateExpiry      time.Time `json:"certificateExpiry,omitzero"`
	CAFingerprints         []string  `json:"caFingerprints,omitempty"`
	// KeyMaterialError says why new key material is not in use. It is empty if there is no new key
	// material, or if it is in use.
	KeyMaterialError string `json:"keyMaterialError,omitempty"`
	// Canary is the state of the canary.
	Canary CanaryState `json:"canary,omitempty"`
	// CanaryError says why the write of the canary fails, or which of several API servers does not
	// call the agent. It is empty otherwise.
	CanaryError string `json:"canaryError,omitempty"`
	// WebhookError says how the webhooks in the API server differ from the webhooks that were
	// applied. It is empty if they do not differ or the agent does not compare them.
	WebhookError string `json:"webhookError,omitempty"`
	// LastReview is the time of the last review of a watched object by an authenticated API server.
	// It is zero if there was no such review, or if the webhook requests no client certificate.
	LastReview time.Time `json:"lastReview,omitzero"`
	// WebhookFailures counts the failed TLS handshakes at the webhook in this epoch.
	WebhookFailures int64 `json:"webhookFailures,omitempty"`
	// ConfigHash changes whenever the agent's configuration changes.
	ConfigHash string `json:"configHash,omitempty"`
	// ConfigError says why new configuration is not in use, for example because the file of
	// managers is malformed, or why changes for the manager are not observed. It is empty if there
	// is no problem.
	ConfigError string `json:"configError,omitempty"`
	// Interruption is the last interval in which the manager accepted nothing. It is zero if there
	// was no such interval in this epoch.
	Interruption Interruption `json:"interruption,omitzero"`
}

// Interruption says why a manager accepted nothing, and for how long. No heartbeat can report an
// interruption that still lasts. Interruptions of less than 1 s do not count.
type Interruption struct {
	// Reason and Error describe the last failed call.
	Reason Reason `json:"reason"`
	Error  string `json:"error,omitempty"`
	// Since is the time of the first failure, and Until the time of the first call that did not
	// fail.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}
