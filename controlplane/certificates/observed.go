package certificates

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"slices"
	"strconv"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// observed is all that one call of Reconcile has read: the view for the plan, and the objects for
// the steps. One goroutine uses it, and throws it away afterwards.
type observed struct {
	view

	names objectNames

	clientsIssuer *certv1.Issuer
	certificates  map[string]*certv1.Certificate // of CAs, by name
	secrets       map[string]*corev1.Secret      // of CAs and the server, by name
	leaves        map[string]leaf                // in all Secrets, by their names.
	orphans       map[string]metav1.ObjectMeta   // Secrets of this set that have no Certificate, by name
	objects       map[int]client.Object          // of the authorities, by generation

	listener   *corev1.Secret      // nil while there is none
	wanted     *corev1.Secret      // of the listener, nil without a server certificate.
	issued     []*x509.Certificate // of the authorities
	bundle     []*x509.Certificate // as published, without former additional CAs
	additional []*x509.Certificate // of Options.AdditionalCAs
}

// hasRotated reports whether there is a CA that this set has made, and not imported.
func (o *observed) hasRotated() bool {
	for _, object := range o.objects {
		if !o.names.imported(object) {
			return true
		}
	}
	return false
}

func (o *observed) isNew() bool {
	return len(o.authorities) == 0 && o.clientSigner == 0 && o.serverSigner == 0
}

func (o *observed) readAuthorities() {
	for _, certificate := range o.certificates {
		o.readAuthority(certificate, o.issuedIn(certificate.Spec.SecretName))
	}

	for name, secret := range o.secrets {
		issued := o.issuedIn(name)
		isImported := o.names.standsAlone(secret) && o.names.isAuthority(secret)
		if isImported && issued != nil && issued.IsCA {
			o.readAuthority(secret, issued)
		}
	}

	slices.SortFunc(o.authorities, func(a, b authority) int { return cmp.Compare(a.generation, b.generation) })
	slices.SortFunc(o.issued, func(a, b *x509.Certificate) int { return a.NotBefore.Compare(b.NotBefore) })
}

func (o *observed) readAuthority(object client.Object, issued *x509.Certificate) {
	generation, _ := strconv.Atoi(o.names.label(object, labelGeneration))
	if generation <= 0 {
		return
	}

	a := authority{generation: generation, request: o.names.annotation(object, annotationRequest)}
	if issued != nil && issued.IsCA {
		a.fingerprint = fingerprint(issued)
		a.name = string(issued.RawSubject)
		a.key = string(issued.SubjectKeyId)
		a.notAfter = issued.NotAfter
		a.life = issued.NotAfter.Sub(issued.NotBefore)
		a.known = o.names.imported(object) && slices.ContainsFunc(o.bundle, issued.Equal)
		a.replaced = !o.names.imported(object) && o.replaces(issued, o.names.authorityName(generation))
		o.issued = append(o.issued, issued)
	}

	o.authorities = append(o.authorities, a)
	o.objects[generation] = object
}

// replaces reports whether the bundle has another key for a CA of that name: its Secret was lost,
// and cert-manager has made a new one.
func (o *observed) replaces(issued *x509.Certificate, name string) bool {
	return issued.Subject.CommonName == name && slices.ContainsFunc(o.bundle, func(ca *x509.Certificate) bool {
		return ca.Subject.CommonName == name && !bytes.Equal(ca.RawSubjectPublicKeyInfo, issued.RawSubjectPublicKeyInfo)
	})
}

func (o *observed) issuedIn(secret string) *x509.Certificate {
	if s := o.secrets[secret]; s != nil {
		return first(s.Data[corev1.TLSCertKey])
	}
	return nil
}

// leafOf returns no runtime for the server.
func (o *observed) leafOf(certificate *certv1.Certificate) leaf {
	l := o.leaves[certificate.Spec.SecretName]
	role := o.names.label(certificate, labelRole)
	l.name = certificate.Name
	l.serving = role == roleWebhook
	l.issuing = isIssuing(certificate)
	l.created = certificate.CreationTimestamp.Time

	if role != roleServer {
		l.runtime = o.names.runtimeOf(certificate)
	}
	if certificate.Status.LastFailureTime != nil {
		l.failed = certificate.Status.LastFailureTime.Time
	}

	return l
}

// serverSecret returns the Secret with the server certificate to publish, nil if there is none. A
// certificate of an unknown CA is never published: the runtimes would not trust it.
func (o *observed) serverSecret() *corev1.Secret {
	issued := o.issuedIn(o.names.server())
	if issued == nil {
		return o.listener
	}

	isKnown := trusted(issued, o.bundle) || trusted(issued, o.issued)
	if !isKnown {
		return o.listener
	}
	return o.secrets[o.names.server()]
}
