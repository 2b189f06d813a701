package contract

import (
	"encoding/json"
	"fmt"
	"time"
)

// Failure says why one event of a batch was not taken.
type Failure struct {
	// Status is what a request with this event alone would have been answered.
	Status int
	// Reason is the metric label of the cause.
	Reason string
	// RetryAfter is how long to wait, in whole seconds on the wire, 0 when nothing was said.
	RetryAfter time.Duration
}

type failuresBody struct {
	Reason string        `json:"reason"`
	Failed []failureBody `json:"failed"`
}

type failureBody struct {
	Index      int    `json:"index"`
	Status     int    `json:"status"`
	Reason     string `json:"reason"`
	RetryAfter int64  `json:"retryAfter,omitempty"`
}

// EncodeFailures returns the body of an answer that says which events of a batch, by index, were not taken. All others
// were.
func EncodeFailures(reason string, failures map[int]Failure) ([]byte, error) {
	body := failuresBody{Reason: reason, Failed: make([]failureBody, 0, len(failures))}

	for index, f := range failures {
		seconds := int64((f.RetryAfter + time.Second - 1) / time.Second)
		body.Failed = append(body.Failed, failureBody{Index: index, Status: f.Status, Reason: f.Reason, RetryAfter: seconds})
	}

	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("answer to a batch: %w", err)
	}

	return text, nil
}

// DecodeFailures returns the failures that an answer to a batch of that size names. ok is false when it names none, or
// is no such answer: then what its status says is true of the whole batch.
func DecodeFailures(answer []byte, size int) (failures map[int]Failure, ok bool) {
	var body failuresBody
	if json.Unmarshal(answer, &body) != nil || len(body.Failed) == 0 {
		return nil, false
	}

	failures = make(map[int]Failure, len(body.Failed))

	for _, f := range body.Failed {
		if f.Index < 0 || f.Index >= size {
			return nil, false
		}

		wait := time.Duration(min(max(f.RetryAfter, 0), int64(time.Hour/time.Second))) * time.Second
		failures[f.Index] = Failure{Status: f.Status, Reason: f.Reason, RetryAfter: wait}
	}

	return failures, true
}
