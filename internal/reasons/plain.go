package reasons

import (
	"context"
	"errors"
	"strings"
)

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
