package certificates

import (
	"context"
	"fmt"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
)

// OwnsRuntime reports whether the certificates of a runtime belong to r.Owner. It returns true if
// there are no certificates.
func (c *Certificates) OwnsRuntime(ctx context.Context, r Runtime) (bool, error) {
	if err := checkID(r.ID); err != nil {
		return true, nil //nolint:nilerr // No certificate can have such an ID.
	}

	// No lock: the answer is a hint, and RemoveRuntime decides again under the lock of the runtime.
	existing, err := serverside.Get(ctx, c.client, c.keyOf(objectName(r.ID, clientSuffix)), &certv1.Certificate{})
	if err != nil {
		return false, fmt.Errorf("certificates: runtime %q: %w", r.ID, err)
	}
	if existing == nil {
		return true, nil
	}
	return c.names.isOf(existing, r.ID) && c.names.owns(existing, r.Owner), nil
}

// RemoveRuntime deletes the certificates of a runtime and their keys, unless they belong to
// another owner or another set. It is not an error if there are no certificates. The domain of r
// does not matter.
func (c *Certificates) RemoveRuntime(ctx context.Context, r Runtime) error {
	if checkID(r.ID) != nil {
		return nil // No certificate can have such an ID.
	}

	c.locks.LockKey(string(r.ID))
	defer c.unlockRuntime(r.ID)

	for _, suffix := range []string{webhookSuffix, clientSuffix} {
		key := c.keyOf(objectName(r.ID, suffix))
		// cert-manager writes the status of a Certificate. Each attempt decides anew.
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { return c.removePair(ctx, r, key) })
		if err != nil {
			return fmt.Errorf("certificates: remove runtime %q: %w", r.ID, err)
		}
	}

	return nil
}

func (c *Certificates) removePair(ctx context.Context, r Runtime, key client.ObjectKey) error {
	certificate, err := serverside.Get(ctx, c.client, key, &certv1.Certificate{})
	if err != nil {
		return err
	}
	if certificate != nil {
		if !c.names.isOf(certificate, r.ID) || !c.names.owns(certificate, r.Owner) {
			return nil
		}
		// cert-manager would make a new Secret while the Certificate exists.
		if err := ownership.DeleteUnchanged(ctx, c.client, certificate); err != nil {
			return err
		}
	}

	secret, err := serverside.Get(ctx, c.client, key, &corev1.Secret{})
	if err != nil || secret == nil || !c.names.isInSet(secret) || isCopied(secret) {
		return err
	}

	return ownership.DeleteUnchanged(ctx, c.client, secret)
}
