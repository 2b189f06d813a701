package natsjetstream

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

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
	answer := contract.V3.AnswerTo(err)
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
