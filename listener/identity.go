package listener

import (
	"crypto/x509"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// IdentityFunc names the runtime that a certificate belongs to. The chain of the certificate is checked before.
type IdentityFunc func(*x509.Certificate) (core.RuntimeID, error)

// CommonName takes the Common Name of the certificate's subject.
func CommonName(cert *x509.Certificate) (core.RuntimeID, error) {
	return core.RuntimeID(cert.Subject.CommonName), nil
}

// SPIFFE takes the certificate's one URI SAN, a SPIFFE ID (SPIFFE X.509-SVID, section 2), as a whole.
func SPIFFE(cert *x509.Certificate) (core.RuntimeID, error) {
	return core.RuntimeID(cert.URIs[0].String()), nil
}
