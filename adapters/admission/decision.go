package admission

import (
	"github.com/runtime-watcher/runtime-watcher/core"
)

// Decision is what became of a review. It says nothing about whether the write is allowed: it always is.
type Decision string

// The decisions. Only the first three have made an event.
const (
	// Accepted means that the manager will be told.
	Accepted = Decision(core.Accepted)
	// Coalesced means that an equal event was waiting to be sent, and stands for this one.
	Coalesced = Decision(core.Coalesced)
	// Dropped means that the outbox is full. A resync of the manager stands in for the event.
	Dropped = Decision(core.Dropped)
	// Unchanged means that an update changed nothing that the filter asks for.
	Unchanged Decision = "unchanged"
	// Irrelevant means that the filter does not ask for operations, subresources or objects like this.
	Irrelevant Decision = "irrelevant"
	// DryRun means that the write will not be persisted.
	DryRun Decision = "dry_run"
	// NoOwner means that an owner is required and the object names none, or not as "<namespace>/<name>".
	NoOwner Decision = "no_owner"
	// NoName means that neither object nor request has a name, or a longer one than an event carries.
	NoName Decision = "no_name"
	// Unread means that there was no room to read the review beside others. A resync of the manager stands in for the change, if it is one.
	Unread Decision = "unread"
	// Failed means that something panicked, or that the acceptor gave an unknown outcome: see the log.
	Failed Decision = "failed"
)

// message is what the API server gets to read, which shows it in its debug logs only: an allowed write has no message.
func (d Decision) message() string {
	switch d {
	case Accepted:
		return "accepted: the manager will be told"
	case Coalesced:
		return "coalesced: an equal event is waiting to be sent"
	case Dropped:
		return "dropped: the outbox is full, a resync stands in"
	case Unchanged:
		return "unchanged: nothing that is watched differs"
	case Irrelevant:
		return "irrelevant: not watched"
	case DryRun:
		return "dry_run: nothing will be persisted"
	case NoOwner:
		return "no_owner: want annotation " + core.OwnerAnnotation + ": <namespace>/<name>"
	case NoName:
		return "no_name: the object has no name that an event can carry"
	case Unread:
		return "unread: too many large objects at once, a resync stands in"
	default:
		return "failed: see the log of the agent"
	}
}

func decisionOf(outcome core.Outcome) Decision {
	switch outcome {
	case core.Accepted, core.Coalesced, core.Dropped:
		return Decision(outcome)
	default:
		return Failed
	}
}

// filteredOut tells apart, of the changes that a filter kept back, updates without a difference and what is never watched.
func filteredOut(c *core.Change) Decision {
	if c.Operation == core.OperationUpdate && (c.Subresource == "" || c.Subresource == "status") {
		return Unchanged
	}

	return Irrelevant
}
