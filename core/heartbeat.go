package core

import "time"

// CanaryState is what an agent knows of the way from its API server to itself.
type CanaryState string

// The states of a canary.
const (
	// CanaryOff means that the agent has no canary.
	CanaryOff CanaryState = ""
	// CanaryAlive means that the API server calls the agent.
	CanaryAlive CanaryState = "alive"
	// CanaryLost means that it does not: changes go by unseen.
	CanaryLost CanaryState = "lost"
	// CanaryFailing means that the agent can not find out, as its own write fails.
	CanaryFailing CanaryState = "failing"
)

// Heartbeat is how one agent process fares, as far as one manager is concerned.
type Heartbeat struct {
	// Number counts the heartbeats of this epoch to this manager, from 1. A lower one than before has been overtaken.
	Number uint64
	// Interval is when the next heartbeat is to be expected.
	Interval time.Duration
	// Instance tells the replicas of an agent apart, and stays the same when its process is restarted.
	Instance string
	// Leaving means that this is the last heartbeat of the epoch, and that nothing is pending.
	Leaving bool

	// Sequence is the last number that was given to an event before this heartbeat.
	Sequence uint64
	// Pending is how many events are not acknowledged yet, OldestPending how long the oldest of them has been waiting.
	Pending       int64
	OldestPending time.Duration
	// Dropped is how many events were given up in this epoch, by reason.
	Dropped map[string]int64

	// Version is that of the agent.
	Version string
	// CertificateFingerprint and CertificateExpiry are those of the client certificate, CAFingerprints those of the bundle
	// that the agent trusts: SHA-256 of the DER bytes in lower case hex.
	CertificateFingerprint string
	CertificateExpiry      time.Time
	CAFingerprints         []string
	// KeyMaterialError says why new key material is not used, empty when there is none or it is.
	KeyMaterialError string
	// Canary is whether the API server still calls the agent.
	Canary CanaryState
	// ConfigHash changes with the agent's configuration.
	ConfigHash string
}
