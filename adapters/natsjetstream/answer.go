package natsjetstream

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// The headers of messages and answers.
const (
	// headerAnswer of a batch is the subject on which its forwarder waits for the answer.
	headerAnswer = "Watch-Answer"
	// headerStatus and headerRetryAfter of an answer are those of HTTP in contract v3. The body is
	// that of contract v3, too.
	headerStatus     = "Watch-Status"
	headerRetryAfter = "Watch-Retry-After"
)

// answerTo returns the answer to a batch. An err of nil acknowledges it.
func answerTo(subject string, err error) *nats.Msg {
	answer := contract.Answer{Refusal: refusalOf(err)}
	if some, ok := errors.AsType[core.EventErrors](err); ok {
		failed := make(map[int]contract.Refusal, len(some))
		for i, err := range some {
			failed[i] = refusalOf(err)
		}
		answer = contract.Partial(failed)
	}
	msg := nats.NewMsg(subject)
	msg.Header.Set(headerStatus, strconv.Itoa(answer.Status))
	if err == nil {
		return msg
	}
	if answer.RetryAfter > 0 {
		msg.Header.Set(headerRetryAfter, strconv.FormatInt(contract.Seconds(answer.RetryAfter), 10))
	}
	msg.Data, _ = answer.Body() // Strings and numbers always have a JSON form.
	return msg
}

func refusalOf(err error) contract.Refusal {
	if err == nil {
		return contract.Refusal{Status: contract.V3.Status()}
	}
	return contract.Refusal{Status: statusOf(err), Reason: core.Reason(err), RetryAfter: core.RetryAfter(err)}
}

func statusOf(err error) int {
	switch {
	case core.IsPermanent(err):
		return http.StatusBadRequest
	case errors.Is(err, core.ErrUnauthenticated):
		return http.StatusUnauthorized
	case errors.Is(err, core.ErrForbidden):
		return http.StatusForbidden
	case errors.Is(err, core.ErrUnknownManager):
		return http.StatusNotFound
	default:
		return http.StatusServiceUnavailable
	}
}

// readAnswer returns the answer to a request with that many elements.
func readAnswer(msg *nats.Msg, elements int) contract.Answer {
	status, _ := strconv.Atoi(msg.Header.Get(headerStatus))
	answer := contract.DecodeAnswer(status, msg.Data, elements)
	if seconds, err := strconv.ParseUint(msg.Header.Get(headerRetryAfter), 10, 31); err == nil {
		answer.RetryAfter = min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	return answer
}

// maxRetryAfter bounds the wait that an answer asks for.
const maxRetryAfter = 5 * time.Minute
