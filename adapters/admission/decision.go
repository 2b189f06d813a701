package admission

import (
	"github.com/runtime-watcher/runtime-watcher/core"
)

// Decision is the result of a review, as in its answer and in [Hooks.Reviewed]. The write is
// allowed with each of them. Besides the constants, there are:
//
//   - "coalesced", "dropped": the outcome of the acceptor (see [core.Outcome])
//   - "irrelevant": the filter refuses a write that is no update
//   - "no_owner": the object has no valid owner, but an owner is required
//   - "no_name": the object has no name, or one that is too long for an event
//   - "unread": there was no memory to read the review; a resync is accepted instead
//   - "failed": something panicked, see the log; a resync is accepted instead
type Decision string

// The decisions that others compare.
const (
	// Accepted means that an event was accepted.
	Accepted = Decision(core.Accepted)
	// Unchanged means that an update did not change the watched part of the object.
	Unchanged Decision = "unchanged"
	// DryRun means that the write is not persisted.
	DryRun Decision = "dry_run"

	coalesced           = Decision(core.Coalesced)
	dropped             = Decision(core.Dropped)
	irrelevant Decision = "irrelevant"
	noOwner    Decision = "no_owner"
	noName     Decision = "no_name"
	unread     Decision = "unread"
	failed     Decision = "failed"
)

// message is the text in response.status.message. An API server shows it in its debug logs only.
func (d Decision) message() string {
	switch d {
	case Accepted:
		return "accepted: an event will be sent to the manager"
	case coalesced:
		return "coalesced: an equal event is waiting to be sent"
	case dropped:
		return "dropped: the outbox is full, a resync replaces the event"
	case Unchanged:
		return "unchanged: the watched part is the same"
	case irrelevant:
		return "irrelevant: not watched"
	case DryRun:
		return "dry_run: the write is not persisted"
	case noOwner:
		return "no_owner: want annotation " + core.OwnerAnnotation + ": <namespace>/<name>"
	case noName:
		return "no_name: the object has no name that an event can carry"
	case unread:
		return "unread: too many large objects at once, a resync replaces the event"
	default:
		return "failed: see the log of the agent"
	}
}

// decisionOf returns failed for an unknown outcome.
func decisionOf(outcome core.Outcome) Decision {
	switch outcome {
	case core.Accepted, core.Coalesced, core.Dropped:
		return Decision(outcome)
	default:
		return failed
	}
}

// filteredOut returns the decision for a change that the filter refused.
func filteredOut(c *core.Change) Decision {
	if c.Operation == core.OperationUpdate {
		return Unchanged
	}
	return irrelevant
}
