package certificates

import (
	"strconv"
	"strings"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Another client, such as a backup tool, may copy an object of this set to another name in the
// namespace, with all labels. The labels alone therefore prove nothing: an object is of this set
// only if it also has the name that this package gives to an object with these labels. Any other
// object is foreign. A foreign object is never used, counted or deleted.

// isCopied reports whether cert-manager has made a Secret for a Certificate of another name. A
// Certificate of this set and its Secret have one name.
func isCopied(secret *corev1.Secret) bool {
	made := secret.Annotations[certv1.CertificateNameKey]
	return made != "" && made != secret.Name
}

// isOwnCertificate reports whether a Certificate with the label of this set has the name that
// belongs to its role, and to its generation or its runtime.
func (n objectNames) isOwnCertificate(certificate *certv1.Certificate) bool {
	switch n.label(certificate, labelRole) {
	case roleCA:
		return n.isAuthority(certificate)
	case roleClient:
		return certificate.Name == objectName(n.runtimeOf(certificate), clientSuffix)
	case roleWebhook:
		return certificate.Name == objectName(n.runtimeOf(certificate), webhookSuffix)
	default: // Another client may have removed the label of the role.
		return certificate.Name == n.server()
	}
}

// isAuthority reports whether a CA has the name of its generation.
func (n objectNames) isAuthority(ca client.Object) bool {
	generation := n.generationOf(ca.GetName())
	isCA := n.label(ca, labelRole) == roleCA
	return isCA && generation > 0 && n.label(ca, labelGeneration) == strconv.Itoa(generation)
}

// isKey reports whether cert-manager has made a Secret for a Certificate of this set, with a name
// that this package gives. The Secret of the server is none, as the Certificate of the server never
// ends.
func (n objectNames) isKey(secret *corev1.Secret) bool {
	switch n.label(secret, labelRole) {
	case roleCA:
		isNamed := func(commonName string) bool { return commonName == secret.Name }
		return n.isAuthority(secret) && isMadeFor(secret, isNamed)
	case roleClient:
		return isKeyOfRuntime(secret, clientSuffix)
	case roleWebhook:
		return isKeyOfRuntime(secret, webhookSuffix)
	default:
		return false
	}
}

func isKeyOfRuntime(secret *corev1.Secret, suffix string) bool {
	isNamed := func(commonName string) bool {
		return secret.Name == objectName(core.RuntimeID(commonName), suffix)
	}
	return strings.HasSuffix(secret.Name, suffix) && isMadeFor(secret, isNamed)
}

// isMadeFor reports whether a Secret was made for a Certificate with its name. cert-manager writes
// the name of the Certificate on the Secret. Without that annotation, as by the issuer of Gardener
// or in a copy, the Common Name of the issued certificate decides.
func isMadeFor(secret *corev1.Secret, isNamed func(commonName string) bool) bool {
	if made := secret.Annotations[certv1.CertificateNameKey]; made != "" {
		return made == secret.Name
	}

	issued := first(secret.Data[corev1.TLSCertKey])
	return issued != nil && isNamed(issued.Subject.CommonName)
}

func (n objectNames) imported(object client.Object) bool {
	return n.annotation(object, annotationImported) != ""
}

// standsAlone means that cert-manager did not issue the CA: its Secret has no Certificate.
func (n objectNames) standsAlone(secret *corev1.Secret) bool {
	_, made := secret.Annotations[n.key(annotationRequest)]
	return made
}

func (n objectNames) runtimeOf(certificate *certv1.Certificate) core.RuntimeID {
	if id, ok := certificate.Annotations[n.key(annotationRuntime)]; ok {
		return core.RuntimeID(id)
	}
	return core.RuntimeID(certificate.Spec.CommonName)
}

// isOf is false for a Certificate of another set, which uses the same names.
func (n objectNames) isOf(certificate *certv1.Certificate, id core.RuntimeID) bool {
	return n.runtimeOf(certificate) == id && n.isInSet(certificate)
}

// owns is true for a Certificate without owner, which belongs to every owner.
func (n objectNames) owns(certificate *certv1.Certificate, owner client.Object) bool {
	uid := n.annotation(certificate, annotationOwnerUID)
	if uid == "" {
		return true
	}
	return owner != nil && uid == string(owner.GetUID())
}
