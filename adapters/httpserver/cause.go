package httpserver

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
)

// Causes of failed handshakes. They are values of a metric label.
const (
	// CauseNoCertificate means that the client sent no certificate, but must.
	CauseNoCertificate = "no_certificate"
	// CauseUntrusted means that this server refused the certificate of the client.
	CauseUntrusted = "untrusted"
	// CauseBadCertificate means that the client refused the certificate of this server.
	CauseBadCertificate = "bad_certificate"
	// CauseProtocol means that the two have no version or cipher in common, that it was no TLS, or
	// that the handshake is too large.
	CauseProtocol = "protocol"
	// CauseTimeout means that the handshake took longer than it may.
	CauseTimeout = "timeout"
	// CauseClosed means that the client closed the connection after its first byte.
	CauseClosed = "closed"
	// CauseOther means an error of this server, such as missing key material.
	CauseOther = "other"
)

// errNoCertificate is the text of crypto/tls, which has no type for this error. A test compares it.
const errNoCertificate = "tls: client didn't provide a certificate"

// refusals are the alerts by which a client refuses a certificate (RFC 8446, section 6.2).
var refusals = []tls.AlertError{42, 43, 44, 45, 46, 48}

// causeOf returns the cause of a failed handshake. certified is whether the client sent a
// certificate.
func causeOf(err error, certified bool) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return CauseUntrusted
	}

	if errors.Is(err, errHandshakeSize) {
		return CauseProtocol
	}

	if cause := networkCause(err); cause != "" {
		return cause
	}

	switch {
	// VerifyPeerCertificate and VerifyConnection return errors of any type.
	case certified:
		return CauseUntrusted
	case err.Error() == errNoCertificate:
		return CauseNoCertificate
	case isProtocol(err):
		return CauseProtocol
	default:
		return CauseOther
	}
}

// networkCause returns the cause of an error that the other end or the network caused, or "".
func networkCause(err error) string {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return CauseTimeout
	}

	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return CauseClosed
	}

	op, ok := errors.AsType[*net.OpError](err)
	if !ok {
		return ""
	}

	switch {
	case op.Op == "remote error" && isRefusal(op.Err):
		return CauseBadCertificate
	case op.Op == "read", op.Op == "write":
		return CauseClosed
	default:
		return CauseProtocol
	}
}

// isRefusal compares texts, because crypto/tls does not export the type of alerts that it receives.
func isRefusal(alert error) bool {
	return slices.ContainsFunc(refusals, func(a tls.AlertError) bool { return a.Error() == alert.Error() })
}

func isProtocol(err error) bool {
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)

	return notTLS || strings.HasPrefix(err.Error(), "tls: ")
}
