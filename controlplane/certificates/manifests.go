package certificates

import (
	"strconv"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (c *Certificates) metaOf(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: c.namespace, Name: name, Labels: map[string]string{c.names.key(labelSet): c.names.set}}
}

func (c *Certificates) newIssuer(name string, config certv1.IssuerConfig) *certv1.Issuer {
	return &certv1.Issuer{
		TypeMeta:   metav1.TypeMeta{APIVersion: certv1.SchemeGroupVersion.String(), Kind: certv1.IssuerKind},
		ObjectMeta: c.metaOf(name), Spec: certv1.IssuerSpec{IssuerConfig: config},
	}
}

func (c *Certificates) signingIssuer(name string, generation int) *certv1.Issuer {
	return c.newIssuer(name, certv1.IssuerConfig{CA: &certv1.CAIssuer{SecretName: c.names.authorityName(generation)}})
}

// authorityCertificate returns the Certificate of a CA. This package rotates it. cert-manager
// renews it only at the last moment, and then with the same key, so that its signatures stay valid.
func (c *Certificates) authorityCertificate(generation int, request string) *certv1.Certificate {
	name := c.names.authorityName(generation)
	certificate := c.baseCertificate(name, roleCA)
	certificate.Labels[c.names.key(labelGeneration)] = strconv.Itoa(generation)
	certificate.Annotations = map[string]string{c.names.key(annotationRequest): request}
	certificate.Spec.CommonName = name
	certificate.Spec.IsCA = true
	certificate.Spec.Duration = &metav1.Duration{Duration: c.opts.CADuration}
	certificate.Spec.RenewBefore = &metav1.Duration{Duration: shortestRenewal}
	certificate.Spec.PrivateKey.RotationPolicy = certv1.RotationPolicyNever
	certificate.Spec.Usages = []certv1.KeyUsage{certv1.UsageCertSign, certv1.UsageCRLSign, certv1.UsageDigitalSignature}
	certificate.Spec.IssuerRef = c.opts.CAIssuer

	if c.opts.CAIssuer.Name == "" {
		certificate.Spec.IssuerRef = issuerRef(c.names.selfSigned())
	}

	return certificate
}

func (c *Certificates) serverCertificate() *certv1.Certificate {
	certificate := c.baseCertificate(c.names.server(), roleServer)
	if len(c.dnsNames[0]) <= maxCommonName {
		certificate.Spec.CommonName = c.dnsNames[0]
	}

	certificate.Spec.DNSNames = c.dnsNames
	certificate.Spec.Usages = []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageServerAuth}
	certificate.Spec.IssuerRef = issuerRef(c.names.servers())

	return certificate
}

// clientCertificate cannot be served, so that no runtime can act as the listener.
func (c *Certificates) clientCertificate(r Runtime) *certv1.Certificate {
	certificate := c.runtimeCertificate(r, objectName(r.ID, clientSuffix), roleClient)
	certificate.Spec.CommonName = string(r.ID)
	certificate.Spec.DNSNames = []string{canonical(r.Domain)}
	certificate.Spec.Usages = []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageClientAuth}

	return certificate
}

// webhookCertificate is the serving certificate of a webhook. It identifies no runtime, unless the
// issuer has certificates for both usages only. Such an issuer may share a key between certificates
// with equal names, so they differ in the Common Name.
func (c *Certificates) webhookCertificate(r Runtime) *certv1.Certificate {
	certificate := c.runtimeCertificate(r, objectName(r.ID, webhookSuffix), roleWebhook)
	if c.bothUsages() {
		certificate.Spec.CommonName = string(r.ID)
	}

	certificate.Spec.DNSNames = c.opts.serviceNames()
	certificate.Spec.Usages = []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageServerAuth}
	return certificate
}

func (c *Certificates) runtimeCertificate(r Runtime, name, role string) *certv1.Certificate {
	certificate := c.baseCertificate(name, role)
	certificate.Spec.IssuerRef = issuerRef(c.names.clients())
	certificate.Annotations = map[string]string{c.names.key(annotationRuntime): string(r.ID)}

	if r.Owner != nil {
		certificate.Annotations[c.names.key(annotationOwner)] = ownerName(r.Owner)
		certificate.Annotations[c.names.key(annotationOwnerUID)] = string(r.Owner.GetUID())
	}

	return certificate
}

// baseCertificate returns the common part of all Certificates. ECDSA P-256 is allowed by FIPS
// 186-5, and the cheapest in a handshake.
func (c *Certificates) baseCertificate(name, role string) *certv1.Certificate {
	meta := c.metaOf(name)
	meta.Labels[c.names.key(labelRole)] = role
	return &certv1.Certificate{
		TypeMeta:   metav1.TypeMeta{APIVersion: certv1.SchemeGroupVersion.String(), Kind: certv1.CertificateKind},
		ObjectMeta: meta,
		Spec: certv1.CertificateSpec{
			SecretName: name, SecretTemplate: &certv1.CertificateSecretTemplate{Labels: meta.Labels},
			Duration:    &metav1.Duration{Duration: c.opts.Duration},
			RenewBefore: &metav1.Duration{Duration: c.opts.RenewBefore},
			PrivateKey: &certv1.CertificatePrivateKey{
				Algorithm: c.opts.KeyAlgorithm, Size: c.opts.KeySize, Encoding: certv1.PKCS8,
				RotationPolicy: certv1.RotationPolicyAlways,
			},
			RevisionHistoryLimit: new(int32(1)),
		},
	}
}

func issuerRef(name string) cmmeta.IssuerReference {
	return cmmeta.IssuerReference{Group: certv1.SchemeGroupVersion.Group, Kind: certv1.IssuerKind, Name: name}
}

func secretType() metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Secret"}
}
