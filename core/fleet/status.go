package fleet

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// State is the freshness of the watch path of one runtime for one manager.
type State string

const (
	// Unknown means that no heartbeat has arrived yet: the runtime is new, or its agent uses a
	// contract without heartbeats.
	Unknown State = "unknown"
	// Fresh means that a change would reach the control plane. Heartbeats arrive, and the API
	// server of the runtime has recently called the agent, for its canary or for a review.
	Fresh State = "fresh"
	// Unproved means that heartbeats arrive, but nothing shows whether the API server calls the
	// agent.
	Unproved State = "unproved"
	// Stale means that the runtime is silent.
	Stale State = "stale"
	// Degraded means that changes are missed or will soon be missed, for a known reason.
	Degraded State = "degraded"
)

// Condition is a state with its reason.
type Condition struct {
	State  State
	Reason Reason
}

// Status is the freshness of one runtime for one manager.
type Status struct {
	Runtime core.RuntimeID `json:"runtime"`
	Manager core.Manager   `json:"manager"`
	State   State          `json:"state"`
	// Reason says why a runtime is degraded or, if the reason is known, stale. It is empty
	// otherwise.
	Reason Reason `json:"reason,omitempty"`
	// Refused is the reason of the verifier, such as [core.ReasonSANMismatch]. It is empty after a
	// request that was not refused, or after 100 s without a refusal.
	Refused core.Reason `json:"refused,omitempty"`
	// Since is the time of the last change of State or Reason.
	Since time.Time `json:"since"`
	// LastSeen is the time of the last event or heartbeat, or zero if neither has arrived.
	LastSeen time.Time `json:"lastSeen,omitzero"`
	// Replicas are the agent processes that are not silent. For a stale runtime they are the last
	// observed processes, with their last heartbeats.
	Replicas []Replica `json:"replicas,omitempty"`
}

// Replica is one agent process.
type Replica struct {
	// Epoch identifies one run of the process.
	Epoch string `json:"epoch"`
	// Sequence is the highest sequence number received.
	Sequence uint64 `json:"sequence"`
	// LastSeen is the time of the last event or heartbeat.
	LastSeen time.Time `json:"lastSeen"`
	// Proved is the last time at which the API server called the agent, or zero if it is not known.
	Proved time.Time `json:"proved,omitzero"`
	// CertificateExpiry is the expiry of the verified client certificate.
	CertificateExpiry time.Time `json:"certificateExpiry,omitzero"`
	// ClockSkew is how far the clock of the agent is ahead of the clock of this process, in whole
	// seconds. It is negative if the agent's clock is behind. A delayed heartbeat looks like a
	// clock that is behind, so the skew is taken from the less delayed of the last two heartbeats.
	ClockSkew time.Duration `json:"-"`
	// Heartbeat is the last heartbeat, or nil if no heartbeat has arrived yet. It must not be
	// changed.
	Heartbeat *core.Heartbeat `json:"heartbeat,omitempty"`
}

// Transition is a change of freshness.
type Transition struct {
	// From is the previous state, and Reason its reason.
	From   State
	Reason Reason
	// To is the new status.
	To Status
}
