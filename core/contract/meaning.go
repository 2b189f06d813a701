package contract

import (
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// The reasons of a sender for answers that name no reason: metric labels.
const (
	// ReasonRedirect is the reason of every answer with a 3xx status: redirects are not followed.
	ReasonRedirect core.Reason = "redirect"
	// ReasonClientError is the reason of any other answer with a 4xx status.
	ReasonClientError core.Reason = "client_error"
	// ReasonServerError is the reason of any other answer with a 5xx status or a status below 200.
	ReasonServerError core.Reason = "server_error"
)

// Meaning classifies a refusal for the sender.
type Meaning struct {
	// Reason is the metric label.
	Reason core.Reason
	// Cause is the sentinel error of core that corresponds to the refusal, or nil.
	Cause error
	// Permanent reports that no later attempt can succeed.
	Permanent bool
	// Slow reports that the sender should wait long if the receiver requests no wait, because the
	// receiver refuses the sender.
	Slow bool
}

// Interpret classifies a refusal of a request of contract v. The argument page says whether the
// refusal came as a web page, which a listener never writes.
func (v Version) Interpret(r Refusal, page bool) Meaning {
	foreign := r.Reason == ""
	switch {
	case v == V3 && foreign && r.Status == statusForbidden:
		// A policy of a gateway answers the same for a sender and for the path of v3.
		return Meaning{Reason: reasons.GatewayRefused, Cause: core.ErrForbidden, Slow: true}
	case v == V3 && r.Reason != reasons.UnknownManager && r.Status == statusNotFound:
		// A gateway with a route for each manager answers an unknown one in the same way.
		return Meaning{Reason: reasons.UnknownContract, Cause: core.ErrUnknownManager}
	case page && r.Status == statusBadRequest:
		return Meaning{Reason: reasons.GatewayRefused, Slow: true}
	}

	if meaning, known := meanings()[r.Status]; known {
		return meaning
	}
	return Meaning{Reason: reasonOfClass(r.Status)}
}

func meanings() map[int]Meaning {
	return map[int]Meaning{
		statusBadRequest:            {Reason: reasons.Malformed, Permanent: true},
		statusRequestEntityTooLarge: {Reason: reasons.TooLarge, Cause: core.ErrTooLarge, Permanent: true},
		statusUnsupportedMediaType:  {Reason: reasons.MediaType, Permanent: true},
		statusUnauthorized:          {Reason: reasons.Unauthenticated, Cause: core.ErrUnauthenticated, Slow: true},
		statusForbidden:             {Reason: reasons.Forbidden, Cause: core.ErrForbidden, Slow: true},
		statusNotFound:              {Reason: reasons.UnknownManager, Cause: core.ErrUnknownManager},
		statusTooManyRequests:       {Reason: reasons.TooFast, Cause: core.ErrNotReady},
		// The gateway answers, and the receiver does not: a failed replica may be replaced.
		statusBadGateway:         {Reason: ReasonServerError, Cause: core.ErrNotReady},
		statusGatewayTimeout:     {Reason: ReasonServerError, Cause: core.ErrNotReady},
		statusServiceUnavailable: {Reason: reasons.NotReady, Cause: core.ErrNotReady},
	}
}

func reasonOfClass(status int) core.Reason {
	const class = 100
	switch status / class {
	case statusMultipleChoices / class:
		return ReasonRedirect
	case statusBadRequest / class:
		return ReasonClientError
	default:
		return ReasonServerError
	}
}
