package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// The reasons of a forwarder for a batch that was not stored, in addition to the reasons of
// package core. [contract.Meaning] lists the reasons of answers.
const (
	// ReasonUnsendable means that the contract cannot carry the event.
	ReasonUnsendable core.Reason = "unsendable"
	// ReasonMaterial means that the claim of the batch cannot be expressed.
	ReasonMaterial core.Reason = "material"
	// ReasonDisconnected means that there is no connection to a NATS server.
	ReasonDisconnected core.Reason = "disconnected"
	// ReasonTLS means that the TLS handshake with the server failed.
	ReasonTLS core.Reason = "tls"
	// ReasonStreamFull means that the stream is full, or has no more room for this runtime.
	ReasonStreamFull core.Reason = "stream_full"
	// ReasonStream means that the stream refused the message for another reason.
	ReasonStream core.Reason = "stream"
	// ReasonConnection means any other failure between this side and the stream.
	ReasonConnection core.Reason = "connection"
)

// errSubject is of a stream that does not take the messages of its manager, as another program has
// changed its subjects.
var errSubject = errors.New("the stream does not accept the subject of its manager")

// publishError is the error of a batch. It classifies as the answer to an HTTP request does.
//
// Callers use the sentinels and the interfaces of core, so the type is not exported.
type publishError struct {
	Subject string
	// Err is the cause, or nil if the answer names no cause.
	Err error

	reason     core.Reason
	permanent  bool
	retryAfter time.Duration
}

func (e *publishError) Error() string {
	text := fmt.Sprintf("natsjetstream: publish to %s: %s", e.Subject, e.reason)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *publishError) Unwrap() error             { return e.Err }
func (e *publishError) Reason() string            { return string(e.reason) }
func (e *publishError) Retryable() bool           { return !e.permanent }
func (e *publishError) RetryAfter() time.Duration { return e.retryAfter }

func classify(subject string, err error) *publishError {
	failed := &publishError{Subject: subject, Err: reasons.Plain(err), reason: ReasonConnection}
	var api *jetstream.APIError

	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		failed.reason = core.ReasonOf(err)
	case errors.Is(err, nats.ErrPermissionViolation):
		failed.reason = reasons.Forbidden
		failed.Err = both(core.ErrForbidden, err)
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		failed.reason = reasons.UnknownManager
		failed.Err = both(core.ErrUnknownManager, err)
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum):
		failed.reason = reasons.TooLarge
		failed.permanent = true
		failed.Err = both(core.ErrTooLarge, err)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrReconnectBufExceeded),
		errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrConnectionReconnecting):
		failed.reason = ReasonDisconnected
	case errors.Is(err, errSubject):
		failed.reason = ReasonStream
	case errors.As(err, &api):
		failed.reason = reasonOfStream(api)
		failed.Err = both(core.ErrNotReady, err)
	}

	return failed
}

func both(class, cause error) error { return fmt.Errorf("%w: %w", class, cause) }

// The error codes of a server that has no room (errors.json of nats-server).
const (
	codeInsufficientResources = 10023
	codeMemoryExceeded        = 10028
	codeStorageExceeded       = 10047
	codeStoreFailed           = 10077 // maximum messages, messages per subject, or bytes exceeded
)

func reasonOfStream(err *jetstream.APIError) core.Reason {
	switch err.ErrorCode {
	case codeInsufficientResources, codeMemoryExceeded, codeStorageExceeded, codeStoreFailed:
		return ReasonStreamFull
	default:
		return ReasonStream
	}
}

// disconnected takes the last error of the connection.
func disconnected(subject string, last error) *publishError {
	failed := &publishError{Subject: subject, Err: last, reason: ReasonDisconnected}
	switch {
	case errors.Is(last, nats.ErrAuthorization), errors.Is(last, nats.ErrAuthExpired):
		failed.reason = reasons.Unauthenticated
		failed.Err = both(core.ErrUnauthenticated, last)
	case errors.Is(last, nats.ErrTLS):
		failed.reason = ReasonTLS
	}
	return failed
}

// slow is the wait after a refusal of the sender that asks for none.
func refused(subject string, r contract.Refusal, slow time.Duration) *publishError {
	meaning := contract.V3.Interpret(r, false)
	failed := &publishError{
		Subject: subject, Err: meaning.Cause, reason: meaning.Reason, permanent: meaning.Permanent,
	}
	if failed.Err == nil && r.Status != http.StatusBadRequest {
		failed.Err = fmt.Errorf("status %d", r.Status)
	}

	switch {
	case meaning.Permanent:
	case meaning.Slow && r.RetryAfter == 0:
		failed.retryAfter = max(slow, 0)
	default:
		failed.retryAfter = r.RetryAfter
	}

	return failed
}
