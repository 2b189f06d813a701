package listener

import (
	"cmp"
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

// answer is what a sender gets, and why.
type answer struct {
	status int
	// reason is for metrics and logs, and for the body unless told says otherwise. It is empty when the event was taken.
	reason string
	// told is the reason that a stranger gets to read.
	told string
	// retryAfter is how long the sender is asked to wait; 0 means 1 to 3 s, with status 503 only.
	retryAfter time.Duration
	// failed names the events that were refused for themselves.
	failed map[int]contract.Refusal
	// whole is whether the answer to one event is that to its request.
	whole bool
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
	a.told = contract.ReasonNotReady

	if a.status != http.StatusServiceUnavailable {
		a.status, a.told = http.StatusUnauthorized, contract.ReasonUnauthenticated
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
	a.whole = errors.Is(err, core.ErrNotReady)
	a.closes = a.whole

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

// summarize makes one answer of the failures of a request. A failure of the sender or of this replica
// is that of the whole request; all others are named, and concern their events alone.
func (x *exchange) summarize(failures map[int]answer) answer {
	if len(failures) == 0 {
		return answer{status: x.version.Status()}
	}

	first := failures[slices.Min(slices.Collect(maps.Keys(failures)))]
	partial := answer{
		status: http.StatusServiceUnavailable, reason: contract.ReasonPartial, err: first.err,
		failed: make(map[int]contract.Refusal, len(failures)),
	}

	for index, a := range failures {
		if a.whole {
			return a
		}

		partial.failed[index] = contract.Refusal{Status: a.status, Reason: a.reason, RetryAfter: a.retryAfter}
	}

	// The one event of contracts v1 and v2 has its own status: deployed agents read nothing else.
	if x.version.MaxEvents() == 1 {
		first.failed = partial.failed

		return first
	}

	return partial
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
		return strconv.FormatInt(contract.Seconds(min(a.retryAfter, longestWait)), 10)
	}

	return strconv.Itoa(minWait + rand.IntN(maxWait-minWait+1)) //nolint:gosec // Jitter is no secret.
}

func (a *answer) body() []byte {
	told := contract.Answer{Refusal: contract.Refusal{Reason: cmp.Or(a.told, a.reason)}, Failed: a.failed}

	body, err := told.Body()
	if err != nil {
		return nil // Strings and numbers always have a JSON form.
	}

	return body
}
