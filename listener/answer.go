package listener

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// answer is the answer to a request, or to one element of it.
type answer struct {
	status int
	// reason is for metrics and logs. It is empty when everything was taken.
	reason string
	// public replaces reason in the body: a stranger does not learn the cause.
	public string
	// retryAfter is the wait that the sender is asked for. 0: 1 to 3 s, with status 503 only.
	retryAfter time.Duration
	// atOnce asks for no wait: the next request may reach another replica.
	atOnce bool
	// failed names the elements that were refused for themselves.
	failed map[int]contract.Refusal
	// unverified means that the verifier did not let the element pass.
	unverified bool
	// whole means that the answer to one element is the answer to its request.
	whole bool
	// closes ends the connection, so that the sender connects to another replica.
	closes bool
	// passed is the answer of the leader, which is written as it came.
	passed *passedAnswer
	// err is for the log.
	err error
}

// refuse returns the refusal of a request.
func refuse(status int, reason string) answer { return answer{status: status, reason: reason} }

// refuseAndClose returns the refusal of a request that also ends the connection.
func refuseAndClose(status int, reason string) answer {
	return answer{status: status, reason: reason, closes: true}
}

// refuseUnverified returns the answer to the error of a verifier. Only a refusal is 401 or 403:
// everything else may change.
func refuseUnverified(err error) answer {
	a := retryLater(err)
	a.unverified = true
	switch {
	case errors.Is(err, core.ErrForbidden):
		a.status = http.StatusForbidden
	case errors.Is(err, core.ErrUnauthenticated):
		a.status = http.StatusUnauthorized
	}
	return a
}

// maxWait bounds the wait that a verifier or a handler can ask for.
const maxWait = 5 * time.Minute

func retryLater(err error) answer {
	return answer{
		status:     http.StatusServiceUnavailable,
		reason:     core.Reason(err),
		retryAfter: min(core.RetryAfter(err), maxWait),
		err:        err,
	}
}

// refusal returns the answer to one element as it travels.
func (a *answer) refusal() contract.Refusal {
	return contract.Refusal{Status: a.status, Reason: a.reason, RetryAfter: a.retryAfter}
}

// write sends the answer.
func (a *answer) write(w http.ResponseWriter) {
	if a.closes {
		w.Header().Set("Connection", "close")
	}
	switch {
	case a.passed != nil:
		a.passed.write(w)
		return
	case a.reason == "":
		w.WriteHeader(a.status)
		return
	}
	body := a.body()
	a.setHeader(w.Header(), len(body))
	w.WriteHeader(a.status)
	_, _ = w.Write(body) // It fails when the sender is gone.
}

func (a *answer) setHeader(header http.Header, size int) {
	switch a.status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if a.atOnce {
			break
		}
		header.Set("Retry-After", a.wait())
	case http.StatusMethodNotAllowed:
		header.Set("Allow", http.MethodPost)
	}
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(size))
}

// wait returns the value of Retry-After, in whole seconds (RFC 9110, section 10.2.3). Without a
// wait it is random, so that senders that were refused together do not come back together.
func (a *answer) wait() string {
	if a.retryAfter > 0 {
		return strconv.FormatInt(contract.Seconds(a.retryAfter), 10)
	}
	const shortest, longest = 1, 3
	return strconv.Itoa(shortest + rand.IntN(longest-shortest+1)) //nolint:gosec // Jitter is no secret.
}

func (a *answer) body() []byte {
	sent := contract.Answer{Refusal: contract.Refusal{Reason: cmp.Or(a.public, a.reason)}, Failed: a.failed}
	body, err := sent.Body()
	if err != nil {
		return nil // Strings and numbers always have a JSON form.
	}
	return body
}
