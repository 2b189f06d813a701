package listener

import (
	"cmp"
	"math/rand/v2"
	"net/http"
	"strconv"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// answer is the answer to a request, and the known facts about the request.
type answer struct {
	// Answer has the reason for metrics and logs. It is empty when everything was taken.
	contract.Answer

	// runtime is the identified sender, manager the operator if it is one of this listener's.
	runtime core.RuntimeID
	manager core.Manager
	// public replaces the reason in the body: a stranger does not learn the cause.
	public string
	// atOnce asks for no wait: the next request may reach another replica.
	atOnce bool
	// closes ends the connection, so that the sender connects to another replica.
	closes bool
	// err is for the log.
	err error
}

// refuse returns the refusal of a request.
func refuse(status int, reason string) answer {
	return answer{Answer: contract.Answer{Refusal: contract.Refusal{Status: status, Reason: reason}}}
}

// refuseAndClose returns the refusal of a request that also ends the connection.
func refuseAndClose(status int, reason string) answer {
	a := refuse(status, reason)
	a.closes = true
	return a
}

// answerTo returns the answer for the result of a request.
func answerTo(version contract.Version, err error) answer {
	return answer{Answer: version.AnswerTo(err), err: err}
}

// write sends the answer.
func (a *answer) write(w http.ResponseWriter) {
	if a.closes {
		w.Header().Set("Connection", "close")
	}
	if a.Reason == "" {
		w.WriteHeader(a.Status)
		return
	}
	body := a.body()
	a.setHeader(w.Header(), len(body))
	w.WriteHeader(a.Status)
	_, _ = w.Write(body) // It fails when the sender is gone.
}

func (a *answer) setHeader(header http.Header, size int) {
	switch a.Status {
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
	if a.RetryAfter > 0 {
		return strconv.FormatInt(contract.Seconds(a.RetryAfter), 10)
	}
	const shortest, longest = 1, 3
	return strconv.Itoa(shortest + rand.IntN(longest-shortest+1)) //nolint:gosec // Jitter is no secret.
}

func (a *answer) body() []byte {
	sent := contract.Answer{Refusal: contract.Refusal{Reason: cmp.Or(a.public, a.Reason)}, Failed: a.Failed}
	body, err := sent.Body()
	if err != nil {
		return nil // Strings and numbers always have a JSON form.
	}
	return body
}
