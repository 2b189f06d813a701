package runtimeagent

import (
	"crypto/x509"
	"log/slog"
	"slices"
	"strings"
)

// warnOfServing logs the faults for which API servers reject the certificate of the webhook. The
// chain is not checked: the agent does not know the caBundle of the webhook configuration.
func (k *keyMaterial) warnOfServing() {
	if !slices.Contains(k.uses, useServer) {
		return
	}
	leaf := k.Status().Material.Certificate.Leaf
	if faults := servingFaults(leaf); len(faults) > 0 {
		k.log.Warn("API servers reject the certificate of the webhook",
			slog.String("fault", strings.Join(faults, "; ")), slog.String("subject", leaf.Subject.String()))
	}
}

// servingFaults returns the faults of a server certificate (RFC 5280, sections 4.2.1.6, 4.2.1.12).
// Every API server ignores the Common Name, as Go does.
func servingFaults(leaf *x509.Certificate) (faults []string) {
	if !mayServe(leaf) {
		faults = append(faults, "extended key usage without serverAuth, want serverAuth or none")
	}
	if len(leaf.DNSNames) == 0 && len(leaf.IPAddresses) == 0 {
		faults = append(faults, "no DNS name (SAN), want <service>.<namespace>.svc")
	}
	return faults
}

func mayServe(leaf *x509.Certificate) bool {
	usages := leaf.ExtKeyUsage
	return len(usages)+len(leaf.UnknownExtKeyUsage) == 0 ||
		slices.Contains(usages, x509.ExtKeyUsageServerAuth) || slices.Contains(usages, x509.ExtKeyUsageAny)
}
