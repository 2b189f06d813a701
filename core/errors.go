package core

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// Errors that callers branch on. Adapters wrap them. Each answers [IsPermanent] and [ReasonOf] for
// the errors that wrap it.
var (
	errInvalidManager error = &reasons.Error{
		Text:  "manager is not a DNS-1123 label (1 to 63 of a-z, 0-9 and '-', neither end a '-')",
		Label: string(ReasonInvalidManager), Permanent: true,
	}
	errInvalidObject error = &reasons.Error{
		Text: "not a Kubernetes object in JSON", Label: string(ReasonInvalidObject), Permanent: true,
	}
	// errInvalidOwner means that the value of [OwnerAnnotation] is invalid.
	errInvalidOwner error = &reasons.Error{
		Text: "owner is not <namespace>/<name>", Label: string(ReasonInvalidOwner), Permanent: true,
	}
	// ErrUnauthenticated means that a sender did not prove its identity. A later attempt can
	// succeed: a rotation may be under way.
	ErrUnauthenticated error = &reasons.Error{Text: "sender is not authenticated", Label: string(ReasonUnauthenticated)}
	// ErrForbidden means that a known sender may not trigger the event. A later attempt can
	// succeed.
	ErrForbidden error = &reasons.Error{Text: "sender may not trigger this", Label: string(ReasonForbidden)}
	// ErrUnknownManager means that the receiver does not serve the manager, or does not serve it
	// yet.
	ErrUnknownManager error = &reasons.Error{
		Text: "receiver does not serve the manager", Label: string(ReasonUnknownManager),
	}
	// ErrNotReady means that the receiver cannot take events yet or can no longer take them.
	ErrNotReady error = &reasons.Error{Text: "not ready", Label: string(ReasonNotReady)}
	// ErrTooLarge means that a batch is larger than the receiver, or the path to it, allows. The
	// refusal is final for the batch but not for its events, unless the batch has only one element.
	ErrTooLarge error = &reasons.Error{
		Text: "batch is too large", Label: string(ReasonTooLarge), Permanent: true,
	}
	// ErrNotSent means that an event or a heartbeat was left out when a batch was cut. It was not
	// refused and belongs in the next batch, in the same order.
	ErrNotSent error = &reasons.Error{Text: "not sent, as the batch was cut", Label: string(ReasonNotSent)}
)

// IsPermanent reports whether err has a method Retryable() bool that returns false: the same
// attempt cannot succeed later. Any other error is not permanent: an event is dropped only on
// proof.
func IsPermanent(err error) bool {
	var r interface{ Retryable() bool }
	return errors.As(err, &r) && !r.Retryable()
}

// RetryAfter returns how long err asks to wait before the next attempt, by a method RetryAfter()
// [time.Duration], and 0 if err has no such method.
func RetryAfter(err error) time.Duration {
	var r interface{ RetryAfter() time.Duration }
	if !errors.As(err, &r) {
		return 0
	}
	return max(r.RetryAfter(), 0)
}

// KeptError is an optional interface for the error of an event that a receiver did not accept. If
// Kept returns true, the transport keeps the event and delivers it again. The sender does not
// resend it. Because the transport may lose the event, the fleet requests a resync.
type KeptError interface {
	error
	Kept() bool
}

// EventErrors is returned by a [Forwarder] when some events of a batch were refused individually
// and the other events were delivered. It maps the index of each failed event to its error. The
// index len(batch.Events) is the index of the heartbeat.
//
// It does not unwrap, because [IsPermanent] of one event says nothing about the other events. Check
// each error separately.
type EventErrors map[int]error

// Error says how many events failed and names the first failed event with its cause.
func (e EventErrors) Error() string {
	if len(e) == 0 {
		return "no event failed"
	}
	first := slices.Min(slices.Collect(maps.Keys(e)))
	return fmt.Sprintf("%d events of the batch failed, the first is number %d: %v", len(e), first, e[first])
}
