package listener

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"time"
)

var errLongChain = Unauthenticated(reasonUntrustedChain, "want a chain of at most %d certificates", maxChain)

// verify returns the chain from leaf to roots that is valid longest (RFC 5280, section 6). A
// certificate with extended key usages must allow client authentication, and so must those above it
// (section 4.2.1.12).
func verify(
	leaf *x509.Certificate, others []*x509.Certificate, roots *x509.CertPool, now time.Time,
) ([]*x509.Certificate, error) {
	intermediates := x509.NewCertPool()
	for _, cert := range others {
		intermediates.AddCert(cert)
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots:         roots,
		Intermediates: intermediates,
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, untrusted(leaf, now, err)
	}
	return longest(chains), nil
}

// untrusted names the fault of a chain. The leaf's own validity comes first, because its owner can
// mend it.
func untrusted(leaf *x509.Certificate, now time.Time, err error) error {
	var invalid x509.CertificateInvalidError
	switch {
	case now.Before(leaf.NotBefore):
		return Unauthenticated(reasonNotYetValid, "certificate is valid from %s", leaf.NotBefore.Format(time.RFC3339))
	case now.After(leaf.NotAfter):
		return Unauthenticated(reasonExpired, "certificate was valid until %s", leaf.NotAfter.Format(time.RFC3339))
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return Unauthenticated(reasonWrongKeyUsage, "want a certificate for client authentication: %w", err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return Unauthenticated(reasonExpired, "want a valid chain: %w", err)
	default:
		return Unauthenticated(reasonUntrustedChain, "want a chain to the CA bundle: %w", err)
	}
}

// longest returns the chain with the latest end of validity.
func longest(chains [][]*x509.Certificate) []*x509.Certificate {
	best := chains[0]
	_, until := validity(best)
	for _, chain := range chains[1:] {
		if _, notAfter := validity(chain); notAfter.After(until) {
			best, until = chain, notAfter
		}
	}
	return best
}

// validity returns the time for which all certificates of a chain are valid.
func validity(chain []*x509.Certificate) (notBefore, notAfter time.Time) {
	notBefore, notAfter = chain[0].NotBefore, chain[0].NotAfter
	for _, cert := range chain[1:] {
		if cert.NotBefore.After(notBefore) {
			notBefore = cert.NotBefore
		}
		if cert.NotAfter.Before(notAfter) {
			notAfter = cert.NotAfter
		}
	}
	return notBefore, notAfter
}

// keyOf hashes certificates one after the other. DER is self-delimiting.
func keyOf(certs []*x509.Certificate) cacheKey {
	if len(certs) == 1 {
		return sha256.Sum256(certs[0].Raw)
	}
	hash := sha256.New()
	for _, cert := range certs {
		hash.Write(cert.Raw)
	}
	return cacheKey(hash.Sum(nil))
}
