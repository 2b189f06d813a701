package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Errors that callers branch on. Adapters wrap them. Each answers [IsPermanent] and [Reason] for
// the errors that wrap it.
var (
	// errInvalidManager means that a name is not a DNS-1123 label. It is permanent.
	errInvalidManager error = &sentinel{
		text:      "manager is not a DNS-1123 label (1 to 63 of a-z, 0-9 and '-', neither end a '-')",
		reason:    "invalid_manager",
		permanent: true,
	}
	// errInvalidObject means that bytes which should be a Kubernetes object in JSON are not. It is
	// permanent.
	errInvalidObject error = &sentinel{
		text:      "not a Kubernetes object in JSON",
		reason:    "invalid_object",
		permanent: true,
	}
	// errInvalidOwner means that the value of [OwnerAnnotation] names no object. It is permanent.
	errInvalidOwner error = &sentinel{text: "owner is not <namespace>/<name>", reason: "invalid_owner", permanent: true}
	// ErrUnauthenticated means that a sender did not prove its identity. A later attempt can
	// succeed: a rotation may be under way.
	ErrUnauthenticated error = &sentinel{text: "sender is not authenticated", reason: "unauthenticated"}
	// ErrForbidden means that a known sender may not trigger the event. A later attempt can
	// succeed.
	ErrForbidden error = &sentinel{text: "sender may not trigger this", reason: "forbidden"}
	// ErrUnknownManager means that the receiver does not serve the manager, or not yet.
	ErrUnknownManager error = &sentinel{text: "receiver does not serve the manager", reason: "unknown_manager"}
	// ErrNotReady means that the receiver cannot take events yet, or not any more.
	ErrNotReady error = &sentinel{text: "not ready", reason: "not_ready"}
	// ErrNotSent means that an event, or a heartbeat, stayed behind when a batch was cut. It was
	// not refused: it belongs into the next batch, in its order.
	ErrNotSent error = &sentinel{text: "not sent, as the batch was cut", reason: "not_sent"}
)

// sentinel is an error that is compared by identity and classifies the errors that wrap it.
type sentinel struct {
	text, reason string
	permanent    bool
}

func (s *sentinel) Error() string   { return s.text }
func (s *sentinel) Reason() string  { return s.reason }
func (s *sentinel) Retryable() bool { return !s.permanent }

// IsPermanent reports whether err has a method Retryable() bool that returns false: the same
// attempt cannot succeed later. Any other error is not permanent: an event is dropped on proof
// only.
func IsPermanent(err error) bool {
	var r interface{ Retryable() bool }
	return errors.As(err, &r) && !r.Retryable()
}

// RetryAfter returns how long err asks to wait before the next attempt, by a method RetryAfter()
// [time.Duration], and 0 when it has none.
func RetryAfter(err error) time.Duration {
	var r interface{ RetryAfter() time.Duration }
	if !errors.As(err, &r) {
		return 0
	}
	return max(r.RetryAfter(), 0)
}

// Reason returns the metric label of err: the result of its method Reason() string, which is
// lower-case words joined by '_' from a small fixed set. Without that method, it is "timeout" or
// "canceled" for the end of a context, and "other" for every other error.
func Reason(err error) string {
	var r interface{ Reason() string }
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

// EventErrors is returned by a [Forwarder] when some events of a batch failed for themselves and
// the others were delivered. It maps the index of each failed event to its error. The index
// len(batch.Events) stands for the heartbeat.
//
// It does not unwrap: [IsPermanent] of one event is not that of the others. Ask each error.
type EventErrors map[int]error

// Error names how many events failed, and the first of them with its cause.
func (e EventErrors) Error() string {
	if len(e) == 0 {
		return "no event failed"
	}
	first := slices.Min(slices.Collect(maps.Keys(e)))
	return fmt.Sprintf("%d events of the batch failed, the first is number %d: %v", len(e), first, e[first])
}
