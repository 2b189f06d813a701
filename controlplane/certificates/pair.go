package certificates

import (
	"context"
	"errors"
	"fmt"
	"slices"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// pair is one Certificate of a runtime, with its Secret.
type pair struct {
	wanted   *certv1.Certificate
	existing *certv1.Certificate // nil if there is none
	secret   *corev1.Secret      // nil if there is none
}

// liveObject returns the existing Certificate. It returns a nil interface if there is none, because
// a nil pointer in an interface would count as an object.
func (p *pair) liveObject() client.Object {
	if p.existing == nil {
		return nil
	}
	return p.existing
}

func (c *Certificates) unlockRuntime(id core.RuntimeID) { _ = c.locks.UnlockKey(string(id)) } // It never fails.

// readPair reads the Certificate and the Secret of a pair. It fails if one of them belongs to
// another owner. EnsureRuntime calls it with the lock of the runtime.
func (c *Certificates) readPair(ctx context.Context, p *pair, r Runtime) (err error) {
	key := client.ObjectKeyFromObject(p.wanted)

	p.existing, err = serverside.Get(ctx, c.client, key, &certv1.Certificate{})
	if err != nil {
		return err
	}
	p.secret, err = serverside.Get(ctx, c.client, key, &corev1.Secret{})
	if err != nil {
		return err
	}

	if p.existing == nil && p.secret != nil { // cert-manager would write into it.
		if err := c.checkKey(p.secret, p.wanted); err != nil {
			return fmt.Errorf("%w: %w", errRuntimeTaken, err)
		}
	}

	taken := c.checkOwner(p.existing, r)
	invalid := c.setOwner(p.wanted, r)
	return errors.Join(taken, invalid)
}

func (c *Certificates) checkOwner(existing *certv1.Certificate, r Runtime) error {
	if existing == nil {
		return nil
	}
	if !c.names.isOf(existing, r.ID) {
		return fmt.Errorf("%w: Certificate %s/%s belongs to runtime %q of set %q: delete it if that set no longer exists",
			errRuntimeTaken, existing.Namespace, existing.Name, c.names.runtimeOf(existing), c.names.label(existing, labelSet))
	}

	if c.names.owns(existing, r.Owner) {
		return nil
	}

	// An object with the recorded name but another UID replaces the recorded owner, which has been
	// deleted.
	recorded := c.names.annotation(existing, annotationOwner)
	if r.Owner != nil && recorded == ownerName(r.Owner) {
		return nil
	}
	return fmt.Errorf("%w: Certificate %s/%s belongs to %s with the UID %s: "+
		"give this object another ID, or delete that Certificate if its object is gone",
		errRuntimeTaken, existing.Namespace, existing.Name,
		recorded, c.names.annotation(existing, annotationOwnerUID))
}

// setOwner adds an owner reference where Kubernetes allows one.
func (c *Certificates) setOwner(certificate *certv1.Certificate, r Runtime) error {
	if r.Owner == nil {
		return nil
	}

	isClusterWide := r.Owner.GetNamespace() == ""
	if !isClusterWide && r.Owner.GetNamespace() != c.namespace {
		return nil
	}
	if err := controllerutil.SetOwnerReference(r.Owner, certificate, c.client.Scheme()); err != nil {
		return fmt.Errorf("%w: owner: %w", errInvalidRuntime, err)
	}
	return nil
}

func (c *Certificates) isApplied(p *pair) bool {
	if p.existing == nil {
		return false
	}

	// A list with more elements would pass below.
	if !slices.Equal(p.wanted.Spec.DNSNames, p.existing.Spec.DNSNames) {
		return false
	}
	if !c.bothUsages() && !slices.Equal(p.wanted.Spec.Usages, p.existing.Spec.Usages) {
		return false
	}

	wanted := p.wanted.Spec
	derives := equality.Semantic.DeepDerivative
	if c.bothUsages() { // Such an issuer has no other fields.
		key := wanted.PrivateKey
		wanted = certv1.CertificateSpec{
			CommonName: wanted.CommonName, DNSNames: wanted.DNSNames, SecretName: wanted.SecretName,
			SecretTemplate: wanted.SecretTemplate, IssuerRef: cmmeta.IssuerReference{Name: wanted.IssuerRef.Name},
			PrivateKey: &certv1.CertificatePrivateKey{Algorithm: key.Algorithm, Size: key.Size},
		}
	}

	return derives(wanted, p.existing.Spec) && derives(p.wanted.Labels, p.existing.Labels) &&
		derives(p.wanted.Annotations, p.existing.Annotations) &&
		derives(p.wanted.OwnerReferences, p.existing.OwnerReferences)
}
