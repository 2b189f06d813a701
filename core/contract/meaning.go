package contract

import (
	"github.com/runtime-watcher/runtime-watcher/core"
)

// The reasons of a listener: metric labels at its end, and the "reason" of its answers.
const (
	// ReasonNotFound means that the path is that of no contract (404).
	ReasonNotFound = "not_found"
	// ReasonMethod means that the method is not POST (405).
	ReasonMethod = "method_not_allowed"
	// ReasonUnknownManager means that the listener does not serve the manager, or not yet (404).
	ReasonUnknownManager = "unknown_manager"
	// ReasonMediaType means that the body is not of the contract's media type (415).
	ReasonMediaType = "unsupported_media_type"
	// ReasonTooLarge means that the body is larger than the contract allows (413).
	ReasonTooLarge = "too_large"
	// ReasonMalformed means that the body does not follow the contract (400).
	ReasonMalformed = "malformed"
	// ReasonUnreadable means that the body did not arrive (503).
	ReasonUnreadable = "unreadable_body"
	// ReasonUnauthenticated is the answer to a sender without identity, for any cause (401).
	ReasonUnauthenticated = "unauthenticated"
	// ReasonNotReady means that the listener, the verifier or the handler cannot take events yet
	// (503).
	ReasonNotReady = "not_ready"
	// ReasonBusy means that too many requests are in flight (503).
	ReasonBusy = "busy"
	// ReasonShuttingDown means that the listener is about to stop (503).
	ReasonShuttingDown = "shutting_down"
	// ReasonTooFast means that the runtime has used up its share (429; 503 on contracts v1 and v2).
	ReasonTooFast = "too_fast"
	// ReasonPartial means that some elements of a request were refused for themselves (422).
	ReasonPartial = "partial"
	// ReasonSourceMismatch means that the sender claims to be another runtime than that of its
	// certificate (403).
	ReasonSourceMismatch = "source_mismatch"
	// ReasonPanic means that code of the operator panicked (503).
	ReasonPanic = "panic"
)

// The reasons of a sender for the answers that it gets: metric labels, one for each [Meaning].
const (
	// ReasonForbidden means that this runtime may not trigger the event (403).
	ReasonForbidden = "forbidden"
	// ReasonGatewayRefused means that a gateway refused in a web page (400 in HTML). nginx does so
	// when it does not trust the client certificate. That is no proof against the event.
	ReasonGatewayRefused = "gateway_refused"
	// ReasonUnknownContract means that the path of contract v3 is not known. The receiver, or a
	// gateway before it, answers 403 or 404 without the reason of a listener.
	ReasonUnknownContract = "unknown_contract"
	// reasonRedirect is every answer of 3xx: redirects are not followed.
	reasonRedirect = "redirect"
	// reasonClientError is any other answer of 4xx.
	reasonClientError = "client_error"
	// reasonServerError is any other answer of 5xx, or below 200.
	reasonServerError = "server_error"
)

// Meaning classifies a refusal for the sender.
type Meaning struct {
	// Reason is the metric label.
	Reason string
	// Cause is the sentinel of core that the refusal stands for; nil: none.
	Cause error
	// Permanent is whether no later attempt can succeed.
	Permanent bool
	// Slow is whether to wait long when the receiver does not ask for a wait: it refuses the
	// sender.
	Slow bool
}

// Interpret classifies a refusal of a request of contract v. Page is whether it came as a web page,
// which a listener never writes.
func (v Version) Interpret(r Refusal, page bool) Meaning {
	foreign := r.Reason == ""
	switch {
	case v == V3 && foreign && r.Status == statusForbidden:
		return Meaning{Reason: ReasonUnknownContract, Cause: core.ErrForbidden, Slow: true}
	case v == V3 && r.Reason != ReasonUnknownManager && r.Status == statusNotFound:
		// A gateway with a route for each manager answers an unknown one in the same way.
		return Meaning{Reason: ReasonUnknownContract, Cause: core.ErrUnknownManager}
	case page && r.Status == statusBadRequest:
		return Meaning{Reason: ReasonGatewayRefused, Slow: true}
	}
	if meaning, known := meanings()[r.Status]; known {
		return meaning
	}
	return Meaning{Reason: reasonOfClass(r.Status)}
}

func meanings() map[int]Meaning {
	return map[int]Meaning{
		statusBadRequest:            {Reason: ReasonMalformed, Permanent: true},
		statusRequestEntityTooLarge: {Reason: ReasonTooLarge, Permanent: true},
		statusUnsupportedMediaType:  {Reason: ReasonMediaType, Permanent: true},
		statusUnauthorized:          {Reason: ReasonUnauthenticated, Cause: core.ErrUnauthenticated, Slow: true},
		statusForbidden:             {Reason: ReasonForbidden, Cause: core.ErrForbidden, Slow: true},
		statusNotFound:              {Reason: ReasonUnknownManager, Cause: core.ErrUnknownManager},
		statusTooManyRequests:       {Reason: ReasonTooFast, Cause: core.ErrNotReady},
		// The gateway answers, and the receiver does not: a failed replica may be replaced.
		statusBadGateway:         {Reason: reasonServerError, Cause: core.ErrNotReady},
		statusGatewayTimeout:     {Reason: reasonServerError, Cause: core.ErrNotReady},
		statusServiceUnavailable: {Reason: ReasonNotReady, Cause: core.ErrNotReady},
	}
}

func reasonOfClass(status int) string {
	const class = 100
	switch status / class {
	case statusMultipleChoices / class:
		return reasonRedirect
	case statusBadRequest / class:
		return reasonClientError
	default:
		return reasonServerError
	}
}
