package coretest

import "time"

// Refusal is a refusal with every classification that core knows, for scripts.
type Refusal struct {
	// Permanent is whether no later attempt can succeed.
	Permanent bool
	// After is the wait that the receiver asks for; 0: none.
	After time.Duration
	// Label is the metric label.
	Label string
	// Cause is the error that it wraps; nil: none.
	Cause error
}

// Err returns the refusal as an error.
func (r Refusal) Err() error { return &refusal{r} }

type refusal struct{ Refusal }

func (r *refusal) Error() string {
	if r.Cause == nil {
		return "scripted refusal: " + r.Label
	}
	return "scripted refusal: " + r.Label + ": " + r.Cause.Error()
}

func (r *refusal) Unwrap() error             { return r.Cause }
func (r *refusal) Retryable() bool           { return !r.Permanent }
func (r *refusal) RetryAfter() time.Duration { return r.After }
func (r *refusal) Reason() string            { return r.Label }
