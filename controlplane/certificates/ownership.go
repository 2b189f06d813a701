package certificates

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// errForeign means that a foreign object has a name of this set. Nothing was changed.
var errForeign = errors.New("an object of another owner has a name of this set")

// apply creates or corrects an object of this set. The mark of the set is the label with its name.
// [Certificates.Reconcile] calls it for each object of its steps.
func (c *Certificates) apply(ctx context.Context, object client.Object) error {
	live, err := c.readOwn(ctx, object)
	if err != nil {
		return err
	}
	if certificate, ok := object.(*certv1.Certificate); ok && live == nil {
		if err := c.checkSecret(ctx, certificate); err != nil {
			return err
		}
	}
	return c.applyOver(ctx, object, live)
}

// applyOver applies an object over the one that was read and found to be of this set, nil if there
// was none. It needs no scheme: that of the client may not have the types of cert-manager.
func (c *Certificates) applyOver(ctx context.Context, object, live client.Object) error {
	return ownership.ApplyTyped(ctx, c.client, object, object.GetObjectKind().GroupVersionKind(), live, fieldOwner)
}

// readOwn returns the object with the kind and the name of a planned one, nil if there is none. It
// fails if the object is not of this set.
func (c *Certificates) readOwn(ctx context.Context, wanted client.Object) (client.Object, error) {
	var live client.Object
	switch wanted.(type) {
	case *certv1.Certificate:
		live = &certv1.Certificate{}
	case *certv1.Issuer:
		live = &certv1.Issuer{}
	default:
		live = &corev1.Secret{}
	}

	live, err := serverside.Get(ctx, c.client, client.ObjectKeyFromObject(wanted), live)
	if err != nil || live == nil {
		return nil, err
	}

	kind := wanted.GetObjectKind().GroupVersionKind().Kind
	if err := c.checkMark(live, kind); err != nil {
		return nil, err
	}

	return live, c.checkRole(live, wanted.GetLabels(), kind)
}

// checkSecret fails if cert-manager would write into a foreign Secret.
func (c *Certificates) checkSecret(ctx context.Context, certificate *certv1.Certificate) error {
	secret, err := serverside.Get(ctx, c.client, c.key(certificate.Spec.SecretName), &corev1.Secret{})
	if err != nil || secret == nil {
		return err
	}
	return c.checkKey(secret, certificate)
}

// checkKey fails if a Secret is not that of a planned Certificate.
func (c *Certificates) checkKey(secret *corev1.Secret, certificate *certv1.Certificate) error {
	if err := c.checkMark(secret, "Secret"); err != nil {
		return err
	}
	if isCopied(secret) {
		return fmt.Errorf("%w: Secret %s/%s is a copy of the Secret of Certificate %.80q: delete the copy",
			errForeign, secret.Namespace, secret.Name, secret.Annotations[certv1.CertificateNameKey])
	}
	return c.checkRole(secret, certificate.Labels, "Secret")
}

// checkRole fails if the labels of an object are those of another object of this set, as those of a
// copy are. A label that another client has removed is written again.
func (c *Certificates) checkRole(live client.Object, wanted map[string]string, kind string) error {
	for _, word := range []string{labelRole, labelGeneration} {
		key := c.names.key(word)
		have := c.names.label(live, word)
		if have != "" && have != wanted[key] {
			return fmt.Errorf("%w: %s %s/%s has the label %s: %.80q, want %q: it is a copy of another object: "+
				"delete the copy", errForeign, kind, live.GetNamespace(), live.GetName(), key, have, wanted[key])
		}
	}
	return nil
}

func (c *Certificates) checkMark(live client.Object, kind string) error {
	if c.names.has(live) {
		return nil
	}
	return fmt.Errorf("%w: %s %s/%s has no label %s: %s: delete the object, give it the label to hand it over, "+
		"or use another name for this set",
		errForeign, kind, live.GetNamespace(), live.GetName(), c.names.key(labelSet), c.names.set)
}

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
