package admission

import (
	"github.com/runtime-watcher/runtime-watcher/core"
)

// decision is the result of a review, as [Hooks].Reviewed lists them.
type decision string

const (
	accepted            = decision(core.Accepted)
	coalesced           = decision(core.Coalesced)
	dropped             = decision(core.Dropped)
	irrelevant decision = "irrelevant"
	unchanged  decision = "unchanged"
	dryRun     decision = "dry_run"
	noOwner    decision = "no_owner"
	noName     decision = "no_name"
	unread     decision = "unread"
	failed     decision = "failed"
)

// message is the text in response.status.message. An API server shows it in its debug logs only.
func (d decision) message() string {
	switch d {
	case accepted:
		return "accepted: an event will be sent to the manager"
	case coalesced:
		return "coalesced: an equal event is waiting to be sent"
	case dropped:
		return "dropped: the outbox is full, a resync replaces the event"
	case unchanged:
		return "unchanged: the watched part is the same"
	case irrelevant:
		return "irrelevant: not watched"
	case dryRun:
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
func decisionOf(outcome core.Outcome) decision {
	switch outcome {
	case core.Accepted, core.Coalesced, core.Dropped:
		return decision(outcome)
	default:
		return failed
	}
}

// filteredOut returns the decision for a change that the filter refused.
func filteredOut(c *core.Change) decision {
	if c.Operation == core.OperationUpdate {
		return unchanged
	}
	return irrelevant
}
