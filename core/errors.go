package core

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// What callers branch on. Adapters wrap these; they never return them under another name.
var (
	// ErrInvalidManager means that a name is not a DNS-1123 label.
	ErrInvalidManager = errors.New("manager is not a DNS-1123 label (1 to 63 of a-z, 0-9 and '-')")
	// ErrInvalidObject means that bytes which should be a Kubernetes object in JSON are not.
	ErrInvalidObject = errors.New("not a Kubernetes object in JSON")
	// ErrUnauthenticated means that a sender did not prove who it is.
	ErrUnauthenticated = errors.New("sender is not authenticated")
	// ErrForbidden means that a sender is known, but may not trigger what it asked for.
	ErrForbidden = errors.New("sender may not trigger this")
	// ErrNotReady means that the receiver can not take the event yet, or not any more: try again later.
	ErrNotReady = errors.New("not ready")
)

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

// Reason returns the metric label that err carries, or "other".
func Reason(err error) string {
	var r Reasoner
	if errors.As(err, &r) {
		return r.Reason()
	}

	return "other"
}

// EventErrors is returned by a [Forwarder], or a listener, when some events of a batch failed and the rest was delivered. It maps
// the index of each failed event to its error.
type EventErrors map[int]error

// Error names how many events failed, and the first of them with its cause.
func (e EventErrors) Error() string {
	if len(e) == 0 {
		return "no event failed"
	}

	first := slices.Min(slices.Collect(maps.Keys(e)))

	return fmt.Sprintf("%d events of the batch failed, the first is number %d: %v", len(e), first, e[first])
}
