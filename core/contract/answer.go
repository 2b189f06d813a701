package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// Refusal says why a request, or one event in it, was not accepted.
type Refusal struct {
	// Status is the HTTP status of the answer to a request with only this event.
	Status int
	// Reason is the metric label of the cause.
	Reason core.Reason
	// RetryAfter is the wait that the receiver asks for, in whole seconds on the wire; 0: none.
	RetryAfter time.Duration
}

// Answer is the answer to a request. A zero Refusal with the status of [Version.Status]
// acknowledges the whole request.
type Answer struct {
	Refusal

	// Failed maps each element of the request that was refused individually, by its index in the
	// request. All other elements were accepted.
	Failed map[int]Refusal
}

type answerBody struct {
	Reason core.Reason   `json:"reason"`
	Failed []failureBody `json:"failed,omitempty"`
}

type failureBody struct {
	Index      int         `json:"index"`
	Status     int         `json:"status"`
	Reason     core.Reason `json:"reason"`
	RetryAfter int64       `json:"retryAfter,omitempty"`
}

// AnswerTo returns the answer of a receiver to a request with the result err, as a [core.Forwarder]
// returns it: nil, an error for the whole request, or [core.EventErrors].
//
// A request of contracts v1 and v2 has one event, and deployed agents read only the status. The 503
// of a single event becomes 500, unless the error wraps [core.ErrNotReady]. The agents retry 500,
// but gateways do not: a gateway that retried the request at another replica would return the
// answer of a replica that does not lead. If the verifier is not ready, the verifier of another
// replica may be.
func (v Version) AnswerTo(err error) Answer {
	some, partial := errors.AsType[core.EventErrors](err)
	switch {
	case err == nil:
		return Answer{Refusal: Refusal{Status: v.Status()}}
	case !partial:
		return Answer{Refusal: refusalOf(err)}
	}

	failed := make(map[int]Refusal, len(some))
	for i, err := range some {
		failed[i] = refusalOf(err)
	}

	if v.MaxEvents() > 1 {
		// An error, so that no sender mistakes it for a success, and one that gateways do not
		// retry.
		return Answer{Refusal: Refusal{Status: statusUnprocessableContent, Reason: reasons.Partial}, Failed: failed}
	}

	first := slices.Min(slices.Collect(maps.Keys(some)))
	answer := Answer{Refusal: failed[first], Failed: failed}
	if answer.Status == statusServiceUnavailable && !errors.Is(some[first], core.ErrNotReady) {
		answer.Status = statusInternalServerError
	}
	return answer
}

func refusalOf(err error) Refusal {
	return Refusal{Status: statusOf(err), Reason: core.ReasonOf(err), RetryAfter: core.RetryAfter(err)}
}

// statusOf returns the HTTP status from which a sender learns the class of err. A receiver that is
// not sure asks for a retry.
func statusOf(err error) int {
	switch {
	case errors.Is(err, core.ErrTooLarge):
		return statusRequestEntityTooLarge
	case core.IsPermanent(err):
		return statusBadRequest
	case errors.Is(err, core.ErrForbidden):
		return statusForbidden
	case errors.Is(err, core.ErrUnauthenticated):
		return statusUnauthorized
	case errors.Is(err, core.ErrUnknownManager):
		return statusNotFound
	default:
		return statusServiceUnavailable
	}
}

// Body returns the body of the answer, in JSON. The status and the wait of the whole answer travel
// outside the body, the wait for example in Retry-After.
func (a *Answer) Body() ([]byte, error) {
	body := answerBody{Reason: a.Reason}
	for _, index := range slices.Sorted(maps.Keys(a.Failed)) {
		f := a.Failed[index]
		body.Failed = append(body.Failed, failureBody{
			Index: index, Status: f.Status, Reason: f.Reason, RetryAfter: Seconds(f.RetryAfter),
		})
	}

	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	return append(text, '\n'), nil
}

// Seconds returns a wait in whole seconds, rounded up, as in Retry-After (RFC 9110, section
// 10.2.3).
func Seconds(wait time.Duration) int64 { return int64((wait + time.Second - 1) / time.Second) }

// maxAsked bounds the wait that an answer can ask for one event, in seconds.
const maxAsked = 60 * 60

// DecodeAnswer decodes the answer to a request with that number of elements, including the
// heartbeat. Reason is empty if the body does not come from a listener. Failed is empty if the body
// names no element, or names an element that is not in the request: the answer then applies to all
// elements.
func DecodeAnswer(status int, body []byte, elements int) Answer {
	a := Answer{Refusal: Refusal{Status: status}}
	var decoded answerBody
	if json.Unmarshal(body, &decoded) == nil {
		a.Reason = decoded.Reason
		a.Failed = refusals(decoded.Failed, elements)
	}
	return a
}

// refusals returns nil, so that the answer applies to all elements, if an element is not in the
// request.
func refusals(failed []failureBody, elements int) map[int]Refusal {
	if len(failed) == 0 {
		return nil
	}

	refused := make(map[int]Refusal, len(failed))
	for _, f := range failed {
		if f.Index < 0 || f.Index >= elements {
			return nil
		}
		seconds := min(max(f.RetryAfter, 0), maxAsked)
		wait := time.Duration(seconds) * time.Second
		refused[f.Index] = Refusal{Status: f.Status, Reason: f.Reason, RetryAfter: wait}
	}
	return refused
}
