package reasons

// Error is a sentinel: it is compared by identity. It classifies the errors that wrap it, for
// Reason and IsPermanent of package core.
type Error struct {
	Text, Label string
	Permanent   bool
}

// Error returns the text.
func (e *Error) Error() string { return e.Text }

// Reason returns the label.
func (e *Error) Reason() string { return e.Label }

// Retryable reports whether a later attempt can succeed.
func (e *Error) Retryable() bool { return !e.Permanent }
