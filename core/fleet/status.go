package fleet

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// State is what the control plane knows of the watch path of one runtime for one manager.
type State string

// The states of freshness.
const (
	// Unknown means that no heartbeat came yet: the runtime is new, or its agent speaks a contract without heartbeats.
	Unknown State = "unknown"
	// Fresh means that a change in the runtime would be heard of.
	Fresh State = "fresh"
	// Stale means that the runtime is silent.
	Stale State = "stale"
	// Degraded means that the runtime is heard, but says itself that changes may go by unseen, or soon will.
	Degraded State = "degraded"
)

// The reasons for which a runtime is degraded, worst first.
const (
	ReasonCanaryLost          = "canary_lost"
	ReasonCanaryFailing       = "canary_failing"
	ReasonDropping            = "dropping"
	ReasonPendingTooLong      = "pending_too_long"
	ReasonKeyMaterial         = "key_material"
	ReasonCertificateExpiring = "certificate_expiring"
)

// Conditions returns every state with every reason that it can have, worst last.
func Conditions() []Condition {
	all := []Condition{{State: Fresh}, {State: Unknown}, {State: Stale}}
	for _, reason := range slices.Backward(severity) {
		all = append(all, Condition{Degraded, reason})
	}

	return all
}

// Status is the freshness of one runtime for one manager.
type Status struct {
	Runtime core.RuntimeID `json:"runtime"`
	Manager core.Manager   `json:"manager"`
	State   State          `json:"state"`
	// Reason says why a runtime is degraded, and is empty otherwise.
	Reason string `json:"reason,omitempty"`
	// Since is when State or Reason changed last.
	Since time.Time `json:"since"`
	// Heard is when the runtime was last heard, by an event or a heartbeat; the zero time if never.
	Heard time.Time `json:"heard,omitzero"`
	// Replicas are the agent processes that are heard, by epoch.
	Replicas []Replica `json:"replicas,omitempty"`
}

// Replica is one agent process.
type Replica struct {
	// Epoch is one life of the process.
	Epoch string `json:"epoch"`
	// Sequence is the highest running number that was received from it.
	Sequence uint64 `json:"sequence"`
	// Heard is when it was last heard.
	Heard time.Time `json:"heard"`
	// Heartbeat is the last one, nil when none came yet. It must not be changed.
	Heartbeat *core.Heartbeat `json:"heartbeat,omitempty"`
}

// Transition is a change of freshness.
type Transition struct {
	// From is the state before, with its reason.
	From   State
	Reason string
	// To is the status after.
	To Status
}
