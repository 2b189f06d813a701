package certificates

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

func (c *Certificates) runtimeStatus(
	ctx context.Context, r Runtime, forClient, forWebhook *pair,
) (RuntimeStatus, error) {
	listener, err := serverside.Get(ctx, c.client, c.ListenerSecret(), &corev1.Secret{})
	if err != nil {
		return RuntimeStatus{}, fmt.Errorf("certificates: bundle for runtime %q: %w", r.ID, err)
	}

	bundle, err := c.bundleOf(ctx, listener)
	if err != nil {
		return RuntimeStatus{}, fmt.Errorf("certificates: bundle for runtime %q: %w", r.ID, err)
	}

	for _, p := range []*pair{forClient, forWebhook} {
		if status, ready := c.pairStatus(p, bundle); !ready {
			return status, nil
		}
	}

	return RuntimeStatus{Ready: true, Message: "issued", Secret: map[string][]byte{
		material.CA:                 encode(bundle),
		material.ClientCertificate:  forClient.secret.Data[corev1.TLSCertKey],
		material.ClientKey:          forClient.secret.Data[corev1.TLSPrivateKeyKey],
		material.ServingCertificate: forWebhook.secret.Data[corev1.TLSCertKey],
		material.ServingKey:         forWebhook.secret.Data[corev1.TLSPrivateKeyKey],
	}}, nil
}

// bundleOf returns the bundle that agents may trust, none if this set has not published one.
// Another client may have made the Secret of the listener, with another CA.
func (c *Certificates) bundleOf(ctx context.Context, listener *corev1.Secret) ([]*x509.Certificate, error) {
	if listener == nil {
		return nil, nil
	}
	if !c.names.isInSet(listener) && c.opts.ImportCA.Name != "" {
		return nil, nil // Reconcile takes the Secret over, or names it in its error.
	}
	if err := c.checkMark(listener, "Secret"); err != nil {
		return nil, err
	}
	return c.parseBundle(ctx, listener)
}

func (c *Certificates) pairStatus(p *pair, bundle []*x509.Certificate) (status RuntimeStatus, ready bool) {
	if p.secret == nil {
		return missingStatus(p.existing), false
	}

	loaded, err := keys.ParsePair(p.secret.Data[corev1.TLSCertKey], p.secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil { // cert-manager repairs its Secret.
		return missingStatus(p.existing), false
	}
	if problem := c.misfitOf(p.wanted, loaded.Leaf); problem != "" {
		return RuntimeStatus{Reason: ReasonOutdated, Message: problem + ", and is being replaced"}, false
	}
	if !trusted(loaded.Leaf, bundle) {
		return RuntimeStatus{Reason: ReasonNoBundle, Message: "waiting for a bundle with the CA of the certificate"}, false
	}

	return RuntimeStatus{}, true
}

func missingStatus(certificate *certv1.Certificate) RuntimeStatus {
	status := RuntimeStatus{Reason: ReasonIssuing, Message: "waiting for cert-manager to issue the certificate"}
	if certificate == nil || certificate.Status.LastFailureTime == nil {
		return status
	}

	status.Reason = ReasonFailed
	for _, condition := range certificate.Status.Conditions {
		if condition.Type == certv1.CertificateConditionIssuing && condition.Message != "" {
			status.Message = condition.Message
		}
	}

	return status
}

func (c *Certificates) misfitOf(wanted *certv1.Certificate, issued *x509.Certificate) string {
	usage := x509.ExtKeyUsageServerAuth
	if slices.Contains(wanted.Spec.Usages, certv1.UsageClientAuth) {
		usage = x509.ExtKeyUsageClientAuth
	}

	switch {
	case issued.Subject.CommonName != wanted.Spec.CommonName:
		return fmt.Sprintf("the certificate is for %q", issued.Subject.CommonName)
	case !sets.New(wanted.Spec.DNSNames...).Equal(sets.New(issued.DNSNames...)):
		return "the certificate is for " + strings.Join(issued.DNSNames, ", ")
	case !c.bothUsages() && !slices.Equal(issued.ExtKeyUsage, []x509.ExtKeyUsage{usage}):
		return "the certificate has other extended key usages"
	case time.Now().After(issued.NotAfter):
		return "the certificate is expired"
	default:
		return ""
	}
}
