package admission

// Decision is the result of a review.
type Decision = decision

// The decisions that tests compare.
const (
	Accepted  = accepted
	Unchanged = unchanged
	DryRun    = dryRun
)
