package admission

import "github.com/runtime-watcher/runtime-watcher/core/hook"

// Decision is the result of a review.
type Decision = hook.Decision

// The decisions that tests compare.
const (
	Accepted  = hook.DecisionAccepted
	Unchanged = hook.DecisionUnchanged
	DryRun    = hook.DecisionDryRun
)
