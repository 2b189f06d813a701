package listener

import (
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The reasons of this package for refusing a sender, as metric labels. Those of the request are in
// package contract.
const (
	// reasonNoCertificate means that there is no client certificate, or no header that carries one.
	reasonNoCertificate = "no_certificate"
	// reasonUntrustedProxy means that the sender of the header did not prove to be the gateway.
	reasonUntrustedProxy  = "untrusted_proxy"
	reasonMalformedHeader = "malformed_header"
	// reasonSeveralElements means that a gateway appended to the header instead of setting it.
	reasonSeveralElements = "several_elements"
	// reasonHeaderTooLarge means that the header is larger than 32 KiB.
	reasonHeaderTooLarge = "header_too_large"
	// reasonMalformedCertificate means that the header has a certificate that cannot be parsed.
	reasonMalformedCertificate = "malformed_certificate"
	// reasonHashMismatch means that the header's Hash is not that of its Cert.
	reasonHashMismatch = "hash_mismatch"
	reasonExpired      = "expired"
	reasonNotYetValid  = "not_yet_valid"
	// reasonUntrustedChain means that no chain leads to the CA bundle, or that it is too long.
	reasonUntrustedChain = "untrusted_chain"
	// reasonWrongKeyUsage means that the certificate is not meant for client authentication.
	reasonWrongKeyUsage = "wrong_key_usage"
)

// Unauthenticated returns an error that wraps [core.ErrUnauthenticated] and cause. It has reason as
// its metric label.
func Unauthenticated(reason string, cause error) error {
	return &refusal{class: core.ErrUnauthenticated, reason: reason, cause: cause}
}

// Forbidden returns an error that wraps [core.ErrForbidden] and cause. It has reason as its metric
// label.
func Forbidden(reason string, cause error) error {
	return &refusal{class: core.ErrForbidden, reason: reason, cause: cause}
}

func unauthenticated(reason, format string, args ...any) error {
	return Unauthenticated(reason, fmt.Errorf(format, args...))
}

func forbidden(reason, format string, args ...any) error {
	return Forbidden(reason, fmt.Errorf(format, args...))
}

type refusal struct {
	class  error
	reason string
	cause  error
}

func (r *refusal) Error() string   { return r.class.Error() + ": " + r.cause.Error() }
func (r *refusal) Unwrap() []error { return []error{r.class, r.cause} }
func (r *refusal) Reason() string  { return r.reason }
