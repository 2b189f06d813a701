package reasons

import (
	"context"
	"errors"
	"strings"
)

// Error is a sentinel: it is compared by identity. It classifies the errors that wrap it, for
// Reason and IsPermanent of package core.
type Error struct {
	Text, Label string
	Permanent   bool
}

// Error returns the text of the error.
func (e *Error) Error() string { return e.Text }

// Reason returns the metric label.
func (e *Error) Reason() string { return e.Label }

// Retryable reports whether a later attempt can succeed.
func (e *Error) Retryable() bool { return !e.Permanent }

// Plain returns err with a text that says "no answer in time" instead of Go's words for a deadline.
// It wraps err. Any other error is returned as it is.
func Plain(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return late{err}
}

type late struct{ error }

func (l late) Error() string {
	return strings.ReplaceAll(l.error.Error(), context.DeadlineExceeded.Error(), "no answer in time")
}

func (l late) Unwrap() error { return l.error }
