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
var errForeign = errors.New("want no object of others with a name of this set")

// apply creates or corrects an object of this set. The mark of the set is the label with its name.
func (c *Certificates) apply(ctx context.Context, object client.Object) error {
	live, err := c.readOwn(ctx, object)
	if err != nil {
		return err
	}
	if certificate, ok := object.(*certv1.Certificate); ok && live == nil {
		if err := c.checkSecret(ctx, certificate.Spec.SecretName); err != nil {
			return err
		}
	}
	return c.write(ctx, object, live)
}

// write applies an object over the one that was read and found to be of this set, nil if there was
// none. It needs no scheme: that of the client may not have the types of cert-manager.
func (c *Certificates) write(ctx context.Context, object, live client.Object) error {
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
	return live, c.checkMark(live, wanted.GetObjectKind().GroupVersionKind().Kind)
}

// checkSecret fails if cert-manager would write into a foreign Secret.
func (c *Certificates) checkSecret(ctx context.Context, name string) error {
	secret, err := serverside.Get(ctx, c.client, c.key(name), &corev1.Secret{})
	if err != nil || secret == nil {
		return err
	}
	return c.checkMark(secret, "Secret")
}

func (c *Certificates) checkMark(live client.Object, kind string) error {
	if c.names.has(live) {
		return nil
	}
	return fmt.Errorf("%w: %s %s/%s has no label %s: %s: delete the object, give it the label to hand it over, "+
		"or use another name for this set",
		errForeign, kind, live.GetNamespace(), live.GetName(), c.names.key(labelSet), c.names.set)
}

// isCopied reports whether a Secret is a copy that another client has made under another name, with
// all labels of this set. A Certificate of this set and its Secret have one name, and cert-manager
// writes the name of the Certificate on the Secret. A copy is neither used nor deleted.
func isCopied(secret *corev1.Secret) bool {
	made := secret.Annotations[certv1.CertificateNameKey]
	return made != "" && made != secret.Name
}
