package listener

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// maxIdentity is the length of the longest identity, in bytes: that of a SPIFFE ID (SPIFFE-ID,
// section 2.3).
const maxIdentity = 2048

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

// checkIdentity refuses names that are blank, would forge a line of a log, or would make a scrape
// of metrics fail.
func checkIdentity(id core.RuntimeID) error {
	name := string(id)
	switch {
	case strings.TrimSpace(name) == "":
		return Unauthenticated(reasons.NoIdentity, "the name of the runtime is empty")
	case len(name) > maxIdentity:
		return Unauthenticated(reasons.NoIdentity, "the name of the runtime has %d bytes, want at most %d",
			len(name), maxIdentity)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, notPrintable):
		return Unauthenticated(reasons.NoIdentity, "the name of the runtime has characters that cannot be printed")
	default:
		return nil
	}
}

func notPrintable(r rune) bool { return !unicode.IsPrint(r) }
