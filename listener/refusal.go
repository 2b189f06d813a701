package listener

import (
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Why a request was refused, as metric labels. They say what is wrong with the sender.
const (
	// ReasonNoCertificate means that there is no client certificate, or no header that carries one.
	ReasonNoCertificate = "no_certificate"
	// ReasonUntrustedProxy means that the sender of the header did not prove to be the gateway.
	ReasonUntrustedProxy = "untrusted_proxy"
	// ReasonMalformedHeader means that the header does not follow its format.
	ReasonMalformedHeader = "malformed_header"
	// ReasonSeveralElements means that a gateway appended to the header instead of setting it.
	ReasonSeveralElements = "several_elements"
	// ReasonHeaderTooLarge means that the header is larger than 32 KiB.
	ReasonHeaderTooLarge = "header_too_large"
	// ReasonMalformedCertificate means that what should be a certificate is none.
	ReasonMalformedCertificate = "malformed_certificate"
	// ReasonHashMismatch means that the header's Hash is not that of its Cert.
	ReasonHashMismatch = "hash_mismatch"
	// ReasonExpired means that the certificate, or one in its chain, is not valid any more.
	ReasonExpired = "expired"
	// ReasonNotYetValid means that the certificate, or one in its chain, is not valid yet.
	ReasonNotYetValid = "not_yet_valid"
	// ReasonUntrustedChain means that no chain leads to the CA bundle.
	ReasonUntrustedChain = "untrusted_chain"
	// ReasonWrongKeyUsage means that the certificate is not meant for client authentication.
	ReasonWrongKeyUsage = "wrong_key_usage"
	// ReasonNoIdentity means that the certificate names no runtime.
	ReasonNoIdentity = "no_identity"
	// ReasonSourceMismatch means that the sender claims to be another runtime than its certificate says.
	ReasonSourceMismatch = "source_mismatch"
	// ReasonNoVerifier means that verifiers were composed of none.
	ReasonNoVerifier = "no_verifier"
	// ReasonOwnerMissing means that the owner of the event is not in the control plane.
	ReasonOwnerMissing = "owner_missing"
	// ReasonDomainMissing means that no domain is registered.
	ReasonDomainMissing = "domain_missing"
	// ReasonDomainEmpty means that the registered domain is empty.
	ReasonDomainEmpty = "domain_empty"
	// ReasonDomainWildcard means that the registered domain is a wildcard.
	ReasonDomainWildcard = "domain_wildcard"
	// ReasonDomainAmbiguous means that a domain is registered for more than one runtime, or a runtime has more than one.
	ReasonDomainAmbiguous = "domain_ambiguous"
	// ReasonSANMismatch means that no SAN of the certificate equals the registered domain.
	ReasonSANMismatch = "san_mismatch"
)

// Unauthenticated returns an error that wraps [core.ErrUnauthenticated] and carries reason as its metric label. The format is
// that of [fmt.Errorf].
func Unauthenticated(reason, format string, args ...any) error {
	return &refusal{class: core.ErrUnauthenticated, reason: reason, cause: fmt.Errorf(format, args...)}
}

// Forbidden returns an error that wraps [core.ErrForbidden] and carries reason as its metric label. The format is that of
// [fmt.Errorf].
func Forbidden(reason, format string, args ...any) error {
	return &refusal{class: core.ErrForbidden, reason: reason, cause: fmt.Errorf(format, args...)}
}

// refusal is the error that this package refuses with.
type refusal struct {
	class  error
	reason string
	cause  error
}

var _ core.Reasoner = (*refusal)(nil)

// Error tells the class and the cause.
func (r *refusal) Error() string { return r.class.Error() + ": " + r.cause.Error() }

// Unwrap returns the class and the cause.
func (r *refusal) Unwrap() []error { return []error{r.class, r.cause} }

// Reason returns the metric label.
func (r *refusal) Reason() string { return r.reason }
