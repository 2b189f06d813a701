package certificates

import (
	"context"
	"errors"
	"fmt"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
)

// errForeign means that a foreign object has a name of this set. Nothing was changed.
var errForeign = errors.New("an object of another owner has a name of this set")

// applyOwn creates or corrects an object of this set. The mark of the set is the label with its
// name. [Certificates.Reconcile] calls it for each object of its steps.
func (c *Certificates) applyOwn(ctx context.Context, object client.Object) error {
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
// was none. It needs no scheme, because the scheme of the client may lack the types of
// cert-manager.
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
	secret, err := serverside.Get(ctx, c.client, c.keyOf(certificate.Spec.SecretName), &corev1.Secret{})
	if err != nil || secret == nil {
		return err
	}
	return c.checkKey(secret, certificate)
}

// checkKey fails if a Secret does not belong to a planned Certificate.
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

// checkRole fails if an object has the labels of another object of this set, as a copy has. A label
// that another client has removed is written again.
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
	if c.names.isInSet(live) {
		return nil
	}
	return fmt.Errorf("%w: %s %s/%s has no label %s: %s: delete the object, give it the label to hand it over, "+
		"or use another name for this set",
		errForeign, kind, live.GetNamespace(), live.GetName(), c.names.key(labelSet), c.names.set)
}
