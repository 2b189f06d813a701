package listener

import (
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// commonName returns the Common Name of the certificate's subject.
func commonName(cert *x509.Certificate) (core.RuntimeID, error) {
	return core.RuntimeID(cert.Subject.CommonName), nil
}

var errNoSPIFFE = errors.New("want exactly one URI SAN, of the form spiffe://<trust domain>/<path>")

// SPIFFE is an Identity of [PeerOptions]. It returns the whole SPIFFE ID, with scheme and trust
// domain: the one URI SAN of the certificate (X509-SVID, section 2).
func SPIFFE(cert *x509.Certificate) (core.RuntimeID, error) {
	if len(cert.URIs) != 1 {
		return "", fmt.Errorf("%w, have %d", errNoSPIFFE, len(cert.URIs))
	}
	id := cert.URIs[0]
	if id.Scheme != "spiffe" || id.Host == "" || id.User != nil || id.Port() != "" ||
		id.RawQuery != "" || id.Fragment != "" || len(id.Path) < 2 {
		return "", errNoSPIFFE
	}
	return core.RuntimeID(id.String()), nil
}

// identify calls identity, and refuses the names that checkIdentity refuses.
func identify(
	cert *x509.Certificate, identity func(*x509.Certificate) (core.RuntimeID, error),
) (core.RuntimeID, error) {
	id, err := identity(cert)
	if err != nil {
		return "", Unauthenticated(reasons.NoIdentity, "certificate names no runtime: %w", err)
	}
	return id, checkIdentity(id)
}

// checkIdentity refuses a name as [option.RuntimeName] does.
func checkIdentity(id core.RuntimeID) error {
	if err := option.RuntimeName(string(id)); err != nil {
		return Unauthenticated(reasons.NoIdentity, "%w", err)
	}
	return nil
}
