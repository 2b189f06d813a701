package httpserver

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
)

const (
	causeNoCertificate  = "no_certificate"
	causeUntrusted      = "untrusted"
	causeBadCertificate = "bad_certificate"
	causeProtocol       = "protocol"
	causeTimeout        = "timeout"
	causeClosed         = "closed"
	causeOther          = "other"
)

// errHandshakeSize ends a connection that sends too much before its first request is complete.
var errHandshakeSize = errors.New("TLS handshake and first header are too large")

// errNoCertificate is the text of crypto/tls, which has no type for this error. A test compares it.
const errNoCertificate = "tls: client didn't provide a certificate"

// refusals are the alerts by which a client refuses a certificate (RFC 8446, section 6.2).
var refusals = []tls.AlertError{42, 43, 44, 45, 46, 48}

// certified means that the client sent a certificate.
func causeOf(err error, certified bool) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return causeUntrusted
	}
	if errors.Is(err, errHandshakeSize) {
		return causeProtocol
	}
	if cause := networkCause(err); cause != "" {
		return cause
	}

	switch {
	// VerifyPeerCertificate and VerifyConnection return errors of any type.
	case certified:
		return causeUntrusted
	case err.Error() == errNoCertificate:
		return causeNoCertificate
	case isProtocol(err):
		return causeProtocol
	default:
		return causeOther
	}
}

func networkCause(err error) string {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return causeTimeout
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return causeClosed
	}

	op, ok := errors.AsType[*net.OpError](err)
	if !ok {
		return ""
	}

	switch {
	case op.Op == "remote error" && isRefusal(op.Err):
		return causeBadCertificate
	case op.Op == "read", op.Op == "write":
		return causeClosed
	default:
		return causeProtocol
	}
}

// plainRefusal returns the error of crypto/tls for a record that refuses a certificate, and nil for
// other records. OpenSSL does not encrypt it with TLS 1.3, and crypto/tls then finds a bad record.
func plainRefusal(record []byte) error {
	const recordAlert, size = 21, 7 // RFC 8446, sections 5.1 and 6.
	if len(record) != size || record[0] != recordAlert {
		return nil
	}
	if alert := tls.AlertError(record[size-1]); slices.Contains(refusals, alert) {
		return &net.OpError{Op: "remote error", Err: alert}
	}
	return nil
}

// isRefusal compares texts, because crypto/tls does not export the type of alerts that it receives.
func isRefusal(alert error) bool {
	return slices.ContainsFunc(refusals, func(a tls.AlertError) bool { return a.Error() == alert.Error() })
}

func isProtocol(err error) bool {
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)
	return notTLS || strings.HasPrefix(err.Error(), "tls: ")
}
