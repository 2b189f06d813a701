package listener

import (
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The reasons of this package for refusing a sender, as metric labels. Package core contains
// the reasons for refusing a request.
const (
	// ReasonNoCertificate means that there is no client certificate, or no header that carries one.
	ReasonNoCertificate core.Reason = "no_certificate"
	// ReasonUntrustedProxy means that the sender of the header did not prove to be the gateway.
	ReasonUntrustedProxy core.Reason = "untrusted_proxy"
	// ReasonMalformedHeader means that the header cannot be parsed.
	ReasonMalformedHeader core.Reason = "malformed_header"
	// ReasonSeveralElements means that a gateway appended to the header instead of setting it.
	ReasonSeveralElements core.Reason = "several_elements"
	// ReasonHeaderTooLarge means that the header is larger than 32 KiB.
	ReasonHeaderTooLarge core.Reason = "header_too_large"
	// ReasonMalformedCertificate means that the header contains a certificate that cannot be
	// parsed.
	ReasonMalformedCertificate core.Reason = "malformed_certificate"
	// ReasonHashMismatch means that Hash in the header is not the hash of Cert.
	ReasonHashMismatch core.Reason = "hash_mismatch"
	// ReasonExpired means that the certificate has expired.
	ReasonExpired core.Reason = "expired"
	// ReasonNotYetValid means that the certificate is not valid yet.
	ReasonNotYetValid core.Reason = "not_yet_valid"
	// ReasonUntrustedChain means that no chain leads to the CA bundle, or that the chain is too
	// long.
	ReasonUntrustedChain core.Reason = "untrusted_chain"
	// ReasonWrongKeyUsage means that the certificate is not meant for client authentication.
	ReasonWrongKeyUsage core.Reason = "wrong_key_usage"
)

// Unauthenticated returns an error that wraps [core.ErrUnauthenticated] and cause. Metrics count it
// with the label reason.
func Unauthenticated(reason core.Reason, cause error) error {
	return &refusal{class: core.ErrUnauthenticated, reason: reason, cause: cause}
}

// Forbidden returns an error that wraps [core.ErrForbidden] and cause. Metrics count it with the
// label reason.
func Forbidden(reason core.Reason, cause error) error {
	return &refusal{class: core.ErrForbidden, reason: reason, cause: cause}
}

func unauthenticated(reason core.Reason, format string, args ...any) error {
	return Unauthenticated(reason, fmt.Errorf(format, args...))
}

func forbidden(reason core.Reason, format string, args ...any) error {
	return Forbidden(reason, fmt.Errorf(format, args...))
}

type refusal struct {
	class  error
	reason core.Reason
	cause  error
}

func (r *refusal) Error() string   { return r.class.Error() + ": " + r.cause.Error() }
func (r *refusal) Unwrap() []error { return []error{r.class, r.cause} }
func (r *refusal) Reason() string  { return string(r.reason) }
