package listener

import (
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The reasons of this package for refusing a sender, as metric labels. Those of the request are in
// package contract.
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
	// ReasonMalformedCertificate means that the header has a certificate that cannot be parsed.
	ReasonMalformedCertificate = "malformed_certificate"
	// ReasonHashMismatch means that the header's Hash is not that of its Cert.
	ReasonHashMismatch = "hash_mismatch"
	// ReasonExpired means that the certificate, or one in its chain, has expired.
	ReasonExpired = "expired"
	// ReasonNotYetValid means that the certificate, or one in its chain, is not valid yet.
	ReasonNotYetValid = "not_yet_valid"
	// ReasonUntrustedChain means that no chain leads to the CA bundle, or that it is too long.
	ReasonUntrustedChain = "untrusted_chain"
	// ReasonWrongKeyUsage means that the certificate is not meant for client authentication.
	ReasonWrongKeyUsage = "wrong_key_usage"
	// ReasonNoIdentity means that the certificate names no runtime.
	ReasonNoIdentity = "no_identity"
	// ReasonSourceMismatch means that the sender claims to be another runtime than that of its
	// certificate.
	ReasonSourceMismatch = "source_mismatch"
	// ReasonOwnerMissing means that the owner of the event is not in the control plane.
	ReasonOwnerMissing = "owner_missing"
	// ReasonDomainMissing means that no domain is registered.
	ReasonDomainMissing = "domain_missing"
	// ReasonDomainEmpty means that the registered domain is empty.
	ReasonDomainEmpty = "domain_empty"
	// ReasonDomainWildcard means that the registered domain is a wildcard.
	ReasonDomainWildcard = "domain_wildcard"
	// ReasonDomainAmbiguous means that a domain is registered for several runtimes, or that a
	// runtime has several.
	ReasonDomainAmbiguous = "domain_ambiguous"
	// ReasonSANMismatch means that no SAN of the certificate equals the registered domain.
	ReasonSANMismatch = "san_mismatch"
)

// Unauthenticated returns an error that wraps [core.ErrUnauthenticated] and has reason as its
// metric label. The format is that of [fmt.Errorf].
func Unauthenticated(reason, format string, args ...any) error {
	return &refusal{class: core.ErrUnauthenticated, reason: reason, cause: fmt.Errorf(format, args...)}
}

// Forbidden returns an error that wraps [core.ErrForbidden] and has reason as its metric label. The
// format is that of [fmt.Errorf].
func Forbidden(reason, format string, args ...any) error {
	return &refusal{class: core.ErrForbidden, reason: reason, cause: fmt.Errorf(format, args...)}
}

// refusal is a refusal of this package.
type refusal struct {
	class  error
	reason string
	cause  error
}

var _ core.Reasoner = (*refusal)(nil)

// Error returns the class and the cause.
func (r *refusal) Error() string { return r.class.Error() + ": " + r.cause.Error() }

// Unwrap returns the class and the cause.
func (r *refusal) Unwrap() []error { return []error{r.class, r.cause} }

// Reason returns the metric label.
func (r *refusal) Reason() string { return r.reason }
