package connect

import (
	"crypto/x509"
	"slices"
)

// ServingFaults returns the faults for which API servers reject the certificate of a webhook. See
// RFC 5280, sections 4.2.1.6 and 4.2.1.12. Every API server ignores the Common Name, as Go does.
// The chain is not checked.
func ServingFaults(leaf *x509.Certificate) (faults []string) {
	if !Allows(leaf, x509.ExtKeyUsageServerAuth) {
		faults = append(faults, "extended key usage without serverAuth, want serverAuth or none")
	}
	if len(leaf.DNSNames) == 0 && len(leaf.IPAddresses) == 0 {
		faults = append(faults, "no DNS name (SAN), want <service>.<namespace>.svc")
	}
	return faults
}

// Allows reports whether the extended key usage of a certificate is usage, any, or none at all.
func Allows(leaf *x509.Certificate, usage x509.ExtKeyUsage) bool {
	usages := leaf.ExtKeyUsage
	return len(usages)+len(leaf.UnknownExtKeyUsage) == 0 ||
		slices.Contains(usages, usage) || slices.Contains(usages, x509.ExtKeyUsageAny)
}
