package listener

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// maxIdentity is the longest identity, in bytes: that of a SPIFFE ID (SPIFFE-ID, section 2.3).
const maxIdentity = 2048

// IdentityFunc names the runtime that a certificate belongs to. It is called when the chain of the certificate is checked. An empty
// name, one longer than 2048 bytes, and one with characters that can not be printed are refused, as is an error.
type IdentityFunc func(*x509.Certificate) (core.RuntimeID, error)

// CommonName takes the Common Name of the certificate's subject.
func CommonName(cert *x509.Certificate) (core.RuntimeID, error) {
	return core.RuntimeID(cert.Subject.CommonName), nil
}

var errNoSPIFFE = errors.New("want exactly one URI SAN, of the form spiffe://<trust domain>/<path>")

// SPIFFE takes the SPIFFE ID as a whole, scheme and trust domain included: the one URI SAN of the certificate (X509-SVID, section 2).
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

// identify applies identity, and keeps what names nobody, or would forge a line of a log, out of the house.
func identify(cert *x509.Certificate, identity IdentityFunc) (core.RuntimeID, error) {
	id, err := identity(cert)

	switch {
	case err != nil:
		return "", Unauthenticated(ReasonNoIdentity, "certificate names no runtime: %w", err)
	case strings.TrimSpace(string(id)) == "":
		return "", Unauthenticated(ReasonNoIdentity, "certificate names no runtime: the name is empty")
	case len(id) > maxIdentity:
		return "", Unauthenticated(ReasonNoIdentity, "name of the runtime has %d bytes, want at most %d", len(id), maxIdentity)
	case !utf8.ValidString(string(id)) || strings.ContainsFunc(string(id), notPrintable):
		return "", Unauthenticated(ReasonNoIdentity, "name of the runtime has characters that can not be printed")
	default:
		return id, nil
	}
}

func notPrintable(r rune) bool { return !unicode.IsPrint(r) }
