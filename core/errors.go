package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// What callers branch on. Adapters wrap these; they never return them under another name. Each answers [IsPermanent]
// and [Reason] for the errors that wrap it.
var (
	// ErrInvalidManager means that a name is not a DNS-1123 label. It is permanent.
	ErrInvalidManager error = &sentinel{
		text:      "manager is not a DNS-1123 label (1 to 63 of a-z, 0-9 and '-', neither end a '-')",
		reason:    "invalid_manager",
		permanent: true,
	}
	// ErrInvalidObject means that bytes which should be a Kubernetes object in JSON are not. It is permanent.
	ErrInvalidObject error = &sentinel{
		text:      "not a Kubernetes object in JSON",
		reason:    "invalid_object",
		permanent: true,
	}
	// ErrUnauthenticated means that a sender did not prove who it is. That may change: a rotation may be under way.
	ErrUnauthenticated error = &sentinel{text: "sender is not authenticated", reason: "unauthenticated"}
	// ErrForbidden means that a sender is known, but may not trigger what it asked for. That may change, too.
	ErrForbidden error = &sentinel{text: "sender may not trigger this", reason: "forbidden"}
	// ErrNotReady means that the receiver can not take the event yet, or not any more: try again later.
	ErrNotReady error = &sentinel{text: "not ready", reason: "not_ready"}
)

// sentinel is an error that is compared by identity and classifies what wraps it.
type sentinel struct {
	text, reason string
	permanent    bool
}

func (s *sentinel) Error() string   { return s.text }
func (s *sentinel) Reason() string  { return s.reason }
func (s *sentinel) Retryable() bool { return !s.permanent }

// Retryable is implemented by errors that know whether the same attempt can succeed later.
type Retryable interface{ Retryable() bool }

// RetryAfterer is implemented by errors that know how long to wait before the next attempt.
type RetryAfterer interface{ RetryAfter() time.Duration }

// Reasoner is implemented by errors that name their cause as a metric label: lower case words joined by '_', from a
// small fixed set.
type Reasoner interface{ Reason() string }

// IsPermanent reports whether err says of itself that another attempt can not succeed. An error that says nothing is
// not permanent: an event is dropped on proof only.
func IsPermanent(err error) bool {
	var r Retryable

	return errors.As(err, &r) && !r.Retryable()
}

// RetryAfter returns how long err asks to wait before the next attempt, and 0 when it does not.
func RetryAfter(err error) time.Duration {
	var r RetryAfterer
	if !errors.As(err, &r) {
		return 0
	}

	return max(r.RetryAfter(), 0)
}

// Reason returns the metric label that err carries, "timeout" or "canceled" for the end of a context, and "other" for
// everything else.
func Reason(err error) string {
	var r Reasoner

	switch {
	case errors.As(err, &r):
		return r.Reason()
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	default:
		return "other"
	}
}

// EventErrors is returned by a [Forwarder], or a listener, when some events of a batch failed and the rest was
// delivered. It maps the index of each failed event to its error.
//
// It does not unwrap: what is true of one event, such as [IsPermanent], is not true of the others. Ask each error.
type EventErrors map[int]error

// Error names how many events failed, and the first of them with its cause.
func (e EventErrors) Error() string {
	if len(e) == 0 {
		return "no event failed"
	}

	first := slices.Min(slices.Collect(maps.Keys(e)))

	return fmt.Sprintf("%d events of the batch failed, the first is number %d: %v", len(e), first, e[first])
}
