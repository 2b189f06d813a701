package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// pair is one of the certificates of a runtime.
type pair struct {
	wanted   *certv1.Certificate
	existing *certv1.Certificate // nil if it was just created
	secret   *corev1.Secret      // nil if there is none
}

// pairStatus reports whether the issued certificate is complete, fits, and has its CA in the
// bundle.
func (c *Certificates) pairStatus(p *pair, bundle []*x509.Certificate) (status RuntimeStatus, ready bool) {
	if p.secret == nil {
		return missing(p.existing), false
	}
	loaded, err := tls.X509KeyPair(p.secret.Data[corev1.TLSCertKey], p.secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil { // cert-manager repairs its Secret.
		return missing(p.existing), false
	}
	if problem := c.misfit(p.wanted, loaded.Leaf); problem != "" {
		return RuntimeStatus{Reason: reasonOutdated, Message: problem + ", and is being replaced"}, false
	}
	if !trusted(loaded.Leaf, bundle) {
		return RuntimeStatus{Reason: reasonNoBundle, Message: "waiting for a bundle with the CA of the certificate"}, false
	}
	return RuntimeStatus{}, true
}

func missing(certificate *certv1.Certificate) RuntimeStatus {
	status := RuntimeStatus{Reason: reasonIssuing, Message: "waiting for cert-manager to issue the certificate"}
	if certificate == nil || certificate.Status.LastFailureTime == nil {
		return status
	}
	status.Reason = reasonFailed
	for _, condition := range certificate.Status.Conditions {
		if condition.Type == certv1.CertificateConditionIssuing && condition.Message != "" {
			status.Message = condition.Message
		}
	}
	return status
}

// misfit returns the first difference between a Certificate and the issued one, empty if there is
// none.
func (c *Certificates) misfit(wanted *certv1.Certificate, issued *x509.Certificate) string {
	switch {
	case issued.Subject.CommonName != wanted.Spec.CommonName:
		return fmt.Sprintf("the certificate is for %q", issued.Subject.CommonName)
	case !sets.New(wanted.Spec.DNSNames...).Equal(sets.New(issued.DNSNames...)):
		return "the certificate is for " + strings.Join(issued.DNSNames, ", ")
	case !c.bothUsages() && !slices.Equal(issued.ExtKeyUsage, []x509.ExtKeyUsage{extKeyUsage(wanted)}):
		return "the certificate has other extended key usages"
	case c.opts.Now().After(issued.NotAfter):
		return "the certificate is expired"
	default:
		return ""
	}
}

// extKeyUsage is the one usage of the Certificate of a runtime beside signatures.
func extKeyUsage(certificate *certv1.Certificate) x509.ExtKeyUsage {
	if slices.Contains(certificate.Spec.Usages, certv1.UsageClientAuth) {
		return x509.ExtKeyUsageClientAuth
	}
	return x509.ExtKeyUsageServerAuth
}

func trusted(certificate *x509.Certificate, bundle []*x509.Certificate) bool {
	return slices.ContainsFunc(bundle, func(ca *x509.Certificate) bool { return signedBy(certificate, ca) })
}

// ownSecret makes a Secret end with its Certificate, as a key must not outlive its use.
// cert-manager does that only on request.
func (c *Certificates) ownSecret(ctx context.Context, certificate *certv1.Certificate, secret *corev1.Secret) error {
	isOwner := func(o metav1.OwnerReference) bool { return o.UID == certificate.UID }
	if slices.ContainsFunc(secret.OwnerReferences, isOwner) {
		return nil
	}
	owned := &corev1.Secret{}
	// The UID keeps a Secret that is gone from being created.
	owned.Namespace, owned.Name, owned.UID = secret.Namespace, secret.Name, secret.UID
	owned.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: certv1.SchemeGroupVersion.String(), Kind: certv1.CertificateKind,
		Name: certificate.Name, UID: certificate.UID,
	}}
	return c.apply(ctx, owned)
}
