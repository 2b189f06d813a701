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

// messages are the texts in response.status.message. An API server shows them in its debug logs
// only.
var messages = map[decision]string{
	accepted:   "accepted: an event will be sent to the manager",
	coalesced:  "coalesced: an equal event is waiting to be sent",
	dropped:    "dropped: the outbox is full, a resync replaces the event",
	unchanged:  "unchanged: the watched part is the same",
	irrelevant: "irrelevant: not watched",
	dryRun:     "dry_run: the write is not persisted",
	noOwner:    "no_owner: want annotation " + core.OwnerAnnotation + ": <namespace>/<name>",
	noName:     "no_name: the object has no name that an event can carry",
	unread:     "unread: too many large objects at once, a resync replaces the event",
	failed:     "failed: see the log of the agent",
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
