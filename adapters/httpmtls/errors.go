package httpmtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/proxy"
)

// The reasons of errors without an answer, in addition to [core.ReasonInvalidManager],
// [core.ReasonCanceled] and [core.ReasonTimeout]. [contract.Meaning] lists the reasons of answers.
const (
	// ReasonUnsendable means that the contract cannot carry the event.
	ReasonUnsendable core.Reason = "unsendable"
	// ReasonDNS means that the name of the control plane does not resolve to an address.
	ReasonDNS core.Reason = "dns"
	// ReasonDial means that no connection could be opened.
	ReasonDial core.Reason = "dial"
	// ReasonTLSVerify means that this side refused the server's certificate, because it is not
	// trusted, is not valid, or has another name.
	ReasonTLSVerify core.Reason = "tls_verify"
	// ReasonTLSRefused means that the server refused the handshake. An untrusted client certificate
	// is the usual cause.
	ReasonTLSRefused core.Reason = "tls_refused"
	// ReasonTLS means that the handshake failed for another reason, for example because the server
	// does not support TLS 1.3.
	ReasonTLS core.Reason = "tls"
	// ReasonConnection means that the connection broke before the answer.
	ReasonConnection core.Reason = "connection"
	// ReasonMaterial means that there is no key material, or that the key material names no runtime
	// although the contract requires a runtime.
	ReasonMaterial core.Reason = "material"
	// ReasonClosed means that the forwarder was closed.
	ReasonClosed core.Reason = "closed"
)

var errClosed = errors.New("the forwarder is closed")

// requestError is the error of a request to the control plane. It wraps [core.ErrUnauthenticated]
// (401), [core.ErrForbidden] (403) or [core.ErrNotReady] (429, 502, 503, 504).
//
// The forwarder makes it. The outbox uses these sentinels and the interfaces of core. The fallback
// to v1 reads named, and the pool reads permanent. The type is not exported.
type requestError struct {
	// URL is the URL of the request, without credentials and query.
	URL string
	// Status is the HTTP status of the answer, or 0 without an answer.
	Status int
	// Body is the reason that a listener gives, or otherwise the beginning of the answer, at most 1
	// KiB. It is text from the remote side and must be quoted.
	Body string
	// Err is the cause. It is nil for a status without a sentinel in core.
	Err error

	// reason is a metric label of bounded cardinality.
	reason core.Reason
	// permanent means that no further attempt can succeed.
	permanent bool
	// named means that the answer names the event by its index, as only a listener does.
	named bool
	// retryAfter is 0 if the outbox may choose the wait.
	retryAfter time.Duration
}

// Error returns the request, the status and the cause. The body is quoted.
func (e *requestError) Error() string {
	text := "httpmtls: POST " + e.URL
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

func (e *requestError) Unwrap() error { return e.Err }

// Retryable reports whether another attempt can succeed. It returns false only if the answer proves
// that no attempt can succeed.
func (e *requestError) Retryable() bool { return !e.permanent }

// RetryAfter returns the wait that the receiver requests, at most 5 min, or 0 if it requests none.
func (e *requestError) RetryAfter() time.Duration { return e.retryAfter }

// Reason returns one of the reasons above or a reason of the contract.
func (e *requestError) Reason() string { return string(e.reason) }

// Answer returns the reason that a listener gives, or otherwise the beginning of the answer. It is
// text from the remote side.
func (e *requestError) Answer() string { return e.Body }

// reasonOf returns the reason of an error of the transport. The order of the cases matters, because
// an error can match several of them.
func reasonOf(err error) core.Reason {
	switch {
	case errors.Is(err, context.Canceled):
		return core.ReasonCanceled
	case isA[*proxy.Error](err): // Before the cause, which belongs to the proxy.
		return core.ReasonOf(err)
	case isA[*net.DNSError](err):
		return ReasonDNS
	case isA[*tls.CertificateVerificationError](err), isA[x509.HostnameError](err),
		isA[x509.UnknownAuthorityError](err), isA[x509.CertificateInvalidError](err):
		return ReasonTLSVerify
	case isOperation(err, "remote error"): // Go's Op for a TLS alert of the peer.
		return ReasonTLSRefused
	case errors.Is(err, http.ErrSchemeMismatch), isA[tls.RecordHeaderError](err), isA[tls.AlertError](err):
		return ReasonTLS
	case isOperation(err, "dial"): // A failed dial counts as such even if it timed out.
		return ReasonDial
	case isTimeout(err):
		return core.ReasonTimeout
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
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}

	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

func permanent(target *url.URL, reason core.Reason, err error) error {
	failed := failure(target, reason, err)
	failed.permanent = true
	return failed
}

func failure(target *url.URL, reason core.Reason, err error) *requestError {
	return &requestError{URL: target.String(), Err: err, reason: reason}
}
