package listener

import (
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// Why a request was not taken that the listener itself finds, as metric labels, beside those of peers, verifiers and [core.Reason].
const (
	// ReasonNotFound means that the path is that of no contract.
	ReasonNotFound = "not_found"
	// ReasonMethod means that the method is not POST.
	ReasonMethod = "method_not_allowed"
	// ReasonUnknownManager means that there is no such manager here.
	ReasonUnknownManager = "unknown_manager"
	// ReasonMediaType means that the body is not of the contract's media type.
	ReasonMediaType = "unsupported_media_type"
	// ReasonTooLarge means that the body is larger than the contract allows.
	ReasonTooLarge = "too_large"
	// ReasonMalformed means that the body is not what the contract says.
	ReasonMalformed = "malformed"
	// ReasonUnreadable means that the body did not arrive.
	ReasonUnreadable = "unreadable_body"
	// ReasonUnauthenticated is what a sender without identity is told, whatever the reason is.
	ReasonUnauthenticated = "unauthenticated"
	// ReasonNotReady means that the listener, the verifier or the handler can not take the event yet.
	ReasonNotReady = "not_ready"
	// ReasonBusy means that too many requests are in flight.
	ReasonBusy = "busy"
	// ReasonShuttingDown means that the listener is about to stop.
	ReasonShuttingDown = "shutting_down"
	// ReasonTooFast means that the runtime has used up its share.
	ReasonTooFast = "too_fast"
	// ReasonPartial means that some events of a batch were not taken.
	ReasonPartial = "partial"
	// ReasonPanic means that something panicked.
	ReasonPanic = "panic"
)

// answer is what a sender gets, and why.
type answer struct {
	status int
	// reason is for metrics and logs, and for the body unless told says otherwise. It is empty when the event was taken.
	reason string
	// told is the reason that a stranger gets to read.
	told string
	// retryAfter is how long the sender is asked to wait; 0 means 1 to 3 s, with status 503 only.
	retryAfter time.Duration
	// failures name the events of a batch that were not taken, when others were.
	failures map[int]contract.Failure
	// closes ends the connection, so that the sender finds another replica.
	closes bool
	// err is for the log.
	err error
}

// refuse answers what is wrong with a request.
func refuse(status int, reason string) answer { return answer{status: status, reason: reason} }

// refuseAndClose answers what is wrong, and ends the connection.
func refuseAndClose(status int, reason string) answer {
	return answer{status: status, reason: reason, closes: true}
}

// answerStranger answers a sender that is not known: it learns nothing. It also loses the connection, unless that belongs to a gateway:
// each attempt costs it a handshake, and a runtime whose certificate was replaced shows the new one.
func (l *Listener) answerStranger(err error) answer {
	a := answerRefused(err)
	a.told = ReasonNotReady

	if a.status != http.StatusServiceUnavailable {
		a.status, a.told = http.StatusUnauthorized, ReasonUnauthenticated
		a.closes = l.needsTLS() || a.reason == ReasonUntrustedProxy
	}

	return a
}

// answerRefused answers the error of a verifier. Only a refusal is told so: everything else may change.
func answerRefused(err error) answer {
	switch {
	case errors.Is(err, core.ErrForbidden):
		return answer{status: http.StatusForbidden, reason: core.Reason(err), err: err}
	case errors.Is(err, core.ErrUnauthenticated):
		return answer{status: http.StatusUnauthorized, reason: core.Reason(err), err: err}
	default:
		return answerLater(err)
	}
}

// answerNotTaken answers the error of a handler. One that is not ready may be a replica that does not lead: the sender is to
// come back on a new connection, as on this one it would never meet another.
func answerNotTaken(err error) answer {
	a := answerLater(err)
	a.closes = errors.Is(err, core.ErrNotReady)

	return a
}

func answerLater(err error) answer {
	return answer{
		status:     http.StatusServiceUnavailable,
		reason:     core.Reason(err),
		retryAfter: core.RetryAfter(err),
		err:        err,
	}
}

// sumUp makes one answer of those to the events of a request. When all of them failed alike, the request did; when some were
// taken, the sender is told which were not, with a status that lets nobody take it for a success.
func sumUp(failures map[int]answer, events, taken int) answer {
	if len(failures) == 0 {
		return answer{status: taken}
	}

	first := failures[slices.Min(slices.Collect(maps.Keys(failures)))]
	alike := len(failures) == events
	mixed := answer{status: http.StatusServiceUnavailable, reason: ReasonPartial, err: first.err, failures: make(map[int]contract.Failure)}

	for index, a := range failures {
		alike = alike && a.status == first.status && a.reason == first.reason
		mixed.closes = mixed.closes || a.closes
		mixed.failures[index] = contract.Failure{Status: a.status, Reason: a.reason, RetryAfter: a.retryAfter}
	}

	if alike {
		return first
	}

	return mixed
}

// write sends the answer.
func (a *answer) write(w http.ResponseWriter) {
	header := w.Header()

	if a.closes {
		header.Set("Connection", "close")
	}

	if a.reason == "" {
		w.WriteHeader(a.status)

		return
	}

	if a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests {
		header.Set("Retry-After", a.wait())
	}

	if a.status == http.StatusMethodNotAllowed {
		header.Set("Allow", http.MethodPost)
	}

	body := a.body()

	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(a.status)
	_, _ = w.Write(body) // If the sender has gone, there is nobody to tell.
}

const (
	// minWait and maxWait spread senders that are refused together, in seconds.
	minWait, maxWait = 1, 3
	// longestWait bounds what a handler can ask for.
	longestWait = 5 * time.Minute
)

// wait returns the value of Retry-After, in whole seconds (RFC 9110, section 10.2.3).
func (a *answer) wait() string {
	if a.retryAfter > 0 {
		return strconv.Itoa(int((min(a.retryAfter, longestWait) + time.Second - 1) / time.Second))
	}

	return strconv.Itoa(minWait + rand.IntN(maxWait-minWait+1)) //nolint:gosec // Jitter is no secret.
}

func (a *answer) body() []byte {
	told := a.told
	if told == "" {
		told = a.reason
	}

	if len(a.failures) > 0 {
		body, err := contract.EncodeFailures(told, a.failures)
		if err != nil {
			return nil // As below.
		}

		return body
	}

	body, err := json.Marshal(struct {
		Reason string `json:"reason"`
	}{told})
	if err != nil {
		return nil // A struct of one string can always be marshalled.
	}

	return append(body, '\n')
}
