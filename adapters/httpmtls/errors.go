package httpmtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The reasons of an [Error]: metric labels.
const (
	// ReasonMalformed means that the receiver can not read the event (400).
	ReasonMalformed = "malformed"
	// ReasonTooLarge means that the event is larger than the receiver allows (413).
	ReasonTooLarge = "too_large"
	// ReasonWrongType means that the receiver does not know the media type (415).
	ReasonWrongType = "wrong_type"
	// ReasonUnsendable means that the contract can not carry the event. It was not sent.
	ReasonUnsendable = "unsendable"
	// ReasonInvalidManager means that the manager is no DNS-1123 label. Nothing was sent.
	ReasonInvalidManager = "invalid_manager"
	// ReasonUnauthenticated means that the receiver does not know who we are (401).
	ReasonUnauthenticated = "unauthenticated"
	// ReasonForbidden means that this runtime may not trigger what the event asks for (403).
	ReasonForbidden = "forbidden"
	// ReasonGatewayRefused means that something before the receiver refused in a web page (400 in HTML): nginx does so when it does not trust the client
	// certificate. That is no proof against the event.
	ReasonGatewayRefused = "gateway_refused"
	// ReasonUnknownManager means that the receiver does not serve the manager, or not yet (404).
	ReasonUnknownManager = "unknown_manager"
	// ReasonUnknownContract means that the receiver, or a gateway before it, does not know the path of contract v3: it answers 404, and not in the words
	// of a listener that does not serve the manager.
	ReasonUnknownContract = "unknown_contract"
	// ReasonNoHeartbeats means that a heartbeat was not sent, as the contract has none.
	ReasonNoHeartbeats = "no_heartbeats"
	// ReasonTooFast means that the receiver asks to slow down (429).
	ReasonTooFast = "too_fast"
	// ReasonNotReady means that the receiver can not take events now (503).
	ReasonNotReady = "not_ready"
	// ReasonRedirect is any other answer of 3xx: redirects are not followed.
	ReasonRedirect = "redirect"
	// ReasonClientError is any other answer of 4xx.
	ReasonClientError = "client_error"
	// ReasonServerError is any other answer of 5xx, or below 200.
	ReasonServerError = "server_error"

	// ReasonCanceled means that the caller gave up.
	ReasonCanceled = "canceled"
	// ReasonTimeout means that there was no answer in time.
	ReasonTimeout = "timeout"
	// ReasonDNS means that the name of the control plane could not be resolved.
	ReasonDNS = "dns"
	// ReasonDial means that there was no TCP connection.
	ReasonDial = "dial"
	// ReasonTLSVerify means that the certificate of the server is not trusted, not valid, or for somebody else.
	ReasonTLSVerify = "tls_verify"
	// ReasonTLSRefused means that the server refused the handshake, as it does with a certificate that it does not trust.
	ReasonTLSRefused = "tls_refused"
	// ReasonTLS means that the server does not speak TLS as we do.
	ReasonTLS = "tls"
	// ReasonConnection means that the connection broke.
	ReasonConnection = "connection"
	// ReasonMaterial means that there is no key material.
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

// Retryable reports whether another attempt can succeed. Only what is proved hopeless can not.
func (e *Error) Retryable() bool { return !e.permanent }

// RetryAfter returns how long the receiver asks to wait, at most [Options.MaxRetryAfter]; 0 when it does not ask.
func (e *Error) RetryAfter() time.Duration { return e.retryAfter }

// Reason returns one of the Reason constants.
func (e *Error) Reason() string { return e.reason }

// verdict is what a status means.
type verdict struct {
	reason    string
	cause     error
	permanent bool
	// slow asks for [Options.RefusedRetryAfter] when the receiver does not say when to come back.
	slow bool
}

func judge(status int, header http.Header) verdict {
	switch status {
	case http.StatusBadRequest:
		if isWebPage(header) {
			return verdict{reason: ReasonGatewayRefused, slow: true}
		}

		return verdict{reason: ReasonMalformed, permanent: true}
	case http.StatusRequestEntityTooLarge:
		return verdict{reason: ReasonTooLarge, permanent: true}
	case http.StatusUnsupportedMediaType:
		return verdict{reason: ReasonWrongType, permanent: true}
	case http.StatusUnauthorized:
		return verdict{reason: ReasonUnauthenticated, cause: core.ErrUnauthenticated, slow: true}
	case http.StatusForbidden:
		return verdict{reason: ReasonForbidden, cause: core.ErrForbidden, slow: true}
	case http.StatusNotFound:
		return verdict{reason: ReasonUnknownManager}
	case http.StatusTooManyRequests:
		return verdict{reason: ReasonTooFast, cause: core.ErrNotReady}
	case http.StatusServiceUnavailable:
		return verdict{reason: ReasonNotReady, cause: core.ErrNotReady}
	default:
		return verdict{reason: reasonOfClass(status)}
	}
}

func reasonOfClass(status int) string {
	const class = 100

	switch status / class {
	case http.StatusMultipleChoices / class:
		return ReasonRedirect
	case http.StatusBadRequest / class:
		return ReasonClientError
	default:
		return ReasonServerError
	}
}

// isWebPage tells an answer for people from that of a listener, which never writes one.
func isWebPage(header http.Header) bool {
	mediaType, _, _ := mime.ParseMediaType(header.Get("Content-Type"))

	return mediaType == "text/html"
}

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
