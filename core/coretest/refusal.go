package coretest

import "time"

// Refusal is an error with every classification that core knows, for scripts.
type Refusal struct {
	// Permanent is whether no later attempt can succeed.
	Permanent bool
	// After is the wait that the receiver asks for; 0: none.
	After time.Duration
	// Label is the metric label.
	Label string
	// Cause is the error that Unwrap returns; nil: none.
	Cause error
}

// Error names the label and the cause.
func (r *Refusal) Error() string {
	if r.Cause == nil {
		return "scripted refusal: " + r.Label
	}
	return "scripted refusal: " + r.Label + ": " + r.Cause.Error()
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Cause }

// Retryable reports whether a later attempt can succeed.
func (r *Refusal) Retryable() bool { return !r.Permanent }

// RetryAfter returns the wait that the receiver asks for.
func (r *Refusal) RetryAfter() time.Duration { return r.After }

// Reason returns the label.
func (r *Refusal) Reason() string { return r.Label }
