package httpmtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The reasons of an [Error] without an answer: metric labels. Those of an answer are in
// [contract.Meaning].
const (
	// ReasonUnsendable means that the contract cannot carry the event. It was not sent.
	ReasonUnsendable = "unsendable"
	// ReasonInvalidManager means that the manager is no DNS-1123 label. Nothing was sent.
	ReasonInvalidManager = "invalid_manager"
	// ReasonCanceled means that the caller cancelled the request.
	ReasonCanceled = "canceled"
	// ReasonTimeout means that there was no answer in time.
	ReasonTimeout = "timeout"
	// ReasonDNS means that the name of the control plane could not be resolved.
	ReasonDNS = "dns"
	// ReasonDial means that there was no TCP connection.
	ReasonDial = "dial"
	// ReasonTLSVerify means that the server's certificate is not trusted, not valid, or has another name.
	ReasonTLSVerify = "tls_verify"
	// ReasonTLSRefused means that the server refused the handshake, as with an untrusted certificate.
	ReasonTLSRefused = "tls_refused"
	// ReasonTLS means that the server does not speak TLS 1.3.
	ReasonTLS = "tls"
	// ReasonConnection means that the connection broke.
	ReasonConnection = "connection"
	// ReasonMaterial means that there is no key material, or that it names no runtime for a contract
	// that claims one.
	ReasonMaterial = "material"
	// ReasonClosed means that the forwarder was closed.
	ReasonClosed = "closed"
)

// Error is why a request to the control plane failed. It implements [core.Retryable], [core.RetryAfterer] and
// [core.Reasoner], and wraps [core.ErrUnauthenticated] (401), [core.ErrForbidden] (403) or [core.ErrNotReady] (429, 503).
type Error struct {
	// Method and URL are of the request. The URL has neither credentials nor a query.
	Method, URL string
	// Status is that of the answer, 0 when there was none.
	Status int
	// Body is how the answer begins, at most 1 KiB. Foreign text: quote it.
	Body string
	// Err is the cause; nil for a status that has no meaning beyond itself.
	Err error

	reason     string
	permanent  bool
	retryAfter time.Duration
}

var (
	_ core.Retryable    = (*Error)(nil)
	_ core.RetryAfterer = (*Error)(nil)
	_ core.Reasoner     = (*Error)(nil)
)

// Error names the request, and the answer or what prevented it.
func (e *Error) Error() string {
	text := fmt.Sprintf("httpmtls: %s %s", e.Method, e.URL)
	if e.Status != 0 {
		text += fmt.Sprintf(": status %d %s", e.Status, http.StatusText(e.Status))
	}

	if e.Err != nil {
		text += ": " + e.Err.Error()
	}

	if e.Body != "" {
		text += fmt.Sprintf(": %q", e.Body)
	}

	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Retryable reports whether another attempt can succeed. An error is permanent on proof only.
func (e *Error) Retryable() bool { return !e.permanent }

// RetryAfter returns how long the receiver asks to wait, at most [Options.MaxRetryAfter]; 0 when it does not ask.
func (e *Error) RetryAfter() time.Duration { return e.retryAfter }

// Reason returns a Reason constant of this package, or one of the contract.
func (e *Error) Reason() string { return e.reason }

// reasonOf names why there was no answer.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, context.Canceled):
		return ReasonCanceled
	case isA[*net.DNSError](err):
		return ReasonDNS
	case isA[*tls.CertificateVerificationError](err), isA[x509.HostnameError](err),
		isA[x509.UnknownAuthorityError](err), isA[x509.CertificateInvalidError](err):
		return ReasonTLSVerify
	case isOperation(err, "remote error"):
		return ReasonTLSRefused
	case errors.Is(err, http.ErrSchemeMismatch), isA[tls.RecordHeaderError](err), isA[tls.AlertError](err):
		return ReasonTLS
	case isOperation(err, "dial"):
		return ReasonDial
	case isTimeout(err):
		return ReasonTimeout
	default:
		return ReasonConnection
	}
}

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)

	return ok
}

func isOperation(err error, operation string) bool {
	op, ok := errors.AsType[*net.OpError](err)

	return ok && op.Op == operation
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)

	return errors.Is(err, context.DeadlineExceeded) || ok && timeout.Timeout()
}
