package core

import (
	"context"
	"errors"

	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// Reason says why an event, a request or a batch was not accepted. It consists of lower-case words
// joined by '_'. It is a metric label and the "reason" in the answers of a listener. Reasons that
// only one package gives are constants of that package.
type Reason string

// The reasons of a receiver for a whole request or for one event.
const (
	// ReasonNotFound means that the path belongs to no contract (404).
	ReasonNotFound Reason = reasons.NotFound
	// ReasonMethod means that the method is not POST (405).
	ReasonMethod Reason = reasons.Method
	// ReasonUnknownManager means that the receiver does not serve the manager, or does not serve it
	// yet (404). It is the reason of [ErrUnknownManager].
	ReasonUnknownManager Reason = reasons.UnknownManager
	// ReasonMediaType means that the body does not have the contract's media type (415).
	ReasonMediaType Reason = reasons.MediaType
	// ReasonTooLarge means that the body is larger than the contract allows (413). It is the reason
	// of [ErrTooLarge].
	ReasonTooLarge Reason = reasons.TooLarge
	// ReasonMalformed means that the body does not follow the contract (400).
	ReasonMalformed Reason = reasons.Malformed
	// ReasonUnreadable means that the body did not arrive (503).
	ReasonUnreadable Reason = reasons.Unreadable
	// ReasonUnauthenticated means that the sender proved no identity (401). It is the reason of
	// [ErrUnauthenticated].
	ReasonUnauthenticated Reason = reasons.Unauthenticated
	// ReasonForbidden means that the sender may not trigger the event (403). It is the reason of
	// [ErrForbidden].
	ReasonForbidden Reason = reasons.Forbidden
	// ReasonSourceMismatch means that the sender claims to be a different runtime than its
	// certificate says (403).
	ReasonSourceMismatch Reason = reasons.SourceMismatch
	// ReasonNotReady means that the receiver, the verifier or the handler cannot take events yet
	// (503). It is the reason of [ErrNotReady].
	ReasonNotReady Reason = reasons.NotReady
	// ReasonBusy means that too many requests are in flight (503).
	ReasonBusy Reason = reasons.Busy
	// ReasonShuttingDown means that the receiver is about to stop (503).
	ReasonShuttingDown Reason = reasons.ShuttingDown
	// ReasonTooFast means that the runtime has used up its share (429; 503 with contracts v1 and
	// v2).
	ReasonTooFast Reason = reasons.TooFast
	// ReasonPartial means that individual elements of a request were refused (422).
	ReasonPartial Reason = reasons.Partial
	// ReasonPanic means that code of the operator panicked (503).
	ReasonPanic Reason = reasons.Panic
)

// The reasons of a verifier that compares the sender with a registered domain.
const (
	// ReasonNoIdentity means that the certificate names no runtime.
	ReasonNoIdentity Reason = reasons.NoIdentity
	// ReasonOwnerMissing means that the owner of the event is not in the control plane.
	ReasonOwnerMissing Reason = reasons.OwnerMissing
	// ReasonDomainMissing means that no domain is registered.
	ReasonDomainMissing Reason = reasons.DomainMissing
	// ReasonDomainEmpty means that the registered domain is empty.
	ReasonDomainEmpty Reason = reasons.DomainEmpty
	// ReasonDomainWildcard means that the registered domain is a wildcard.
	ReasonDomainWildcard Reason = reasons.DomainWildcard
	// ReasonDomainAmbiguous means that a domain is registered for several runtimes, or that a
	// runtime has several domains.
	ReasonDomainAmbiguous Reason = reasons.DomainAmbiguous
	// ReasonSANMismatch means that no SAN of the certificate equals the registered domain.
	ReasonSANMismatch Reason = reasons.SANMismatch
	// ReasonCAMismatch means that a CA of the sender's certificate may not name the runtime.
	ReasonCAMismatch Reason = reasons.CAMismatch
	// ReasonRevoked means that the certificate or a name of the sender is on the list of revoked
	// senders.
	ReasonRevoked Reason = reasons.Revoked
)

// The reasons of a sender.
const (
	// ReasonGatewayRefused means that a gateway refused the request. Examples are nginx, which
	// answers with 400 in HTML if it does not trust the client certificate, and a mesh with a
	// policy that answers with 403. The event may be accepted later.
	ReasonGatewayRefused Reason = reasons.GatewayRefused
	// ReasonUnknownContract means that the other side does not support the contract.
	ReasonUnknownContract Reason = reasons.UnknownContract
	// ReasonNotSent is the reason of [ErrNotSent].
	ReasonNotSent Reason = "not_sent"
	// ReasonInvalidManager means that a manager is not a DNS-1123 label.
	ReasonInvalidManager Reason = "invalid_manager"
	// ReasonInvalidObject means that a change does not contain a Kubernetes object in JSON.
	ReasonInvalidObject Reason = "invalid_object"
	// ReasonInvalidOwner means that the owner annotation is not <namespace>/<name>.
	ReasonInvalidOwner Reason = "invalid_owner"
	// ReasonTimeout means that the deadline of a context was exceeded.
	ReasonTimeout Reason = "timeout"
	// ReasonCanceled means that a context was canceled.
	ReasonCanceled Reason = "canceled"
	// ReasonOther is the reason of every error that has no other reason.
	ReasonOther Reason = "other"
)

// ReasonOf returns the reason of err: the result of its method Reason() string, from a small fixed
// set. Without that method, it is [ReasonTimeout] or [ReasonCanceled] if a context ended, and
// [ReasonOther] for every other error.
func ReasonOf(err error) Reason {
	var r interface{ Reason() string }
	switch {
	case errors.As(err, &r):
		return Reason(r.Reason())
	case errors.Is(err, context.DeadlineExceeded):
		return ReasonTimeout
	case errors.Is(err, context.Canceled):
		return ReasonCanceled
	default:
		return ReasonOther
	}
}
