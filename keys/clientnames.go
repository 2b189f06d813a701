package keys

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
)

// verifyName checks that a client certificate has one of the allowed names. No names allow all. An
// empty name allows none.
func verifyName(certificate *x509.Certificate, allowed []string) error {
	if len(allowed) == 0 {
		return nil
	}
	for _, name := range allowed {
		if name != "" && hasName(certificate, name) {
			return nil
		}
	}
	return fmt.Errorf("keys: client certificate of %.64q: want one of the allowed names",
		certificate.Subject.CommonName)
}

// hasName compares DNS names without regard to case (RFC 5280, section 4.2.1.6), all else exactly.
func hasName(certificate *x509.Certificate, name string) bool {
	if certificate.Subject.CommonName == name {
		return true
	}
	if slices.ContainsFunc(certificate.DNSNames, func(dns string) bool { return strings.EqualFold(dns, name) }) {
		return true
	}
	for _, uri := range certificate.URIs {
		if uri.String() == name {
			return true
		}
	}
	return false
}
