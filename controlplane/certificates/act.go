package certificates

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// importAuthority copies an existing CA, which all peers trust already.
func (c *Certificates) importAuthority(ctx context.Context, seen *observed, generation int) error {
	source, err := serverside.Get(ctx, c.client, c.opts.ImportCA, &corev1.Secret{})
	if err != nil {
		return err
	}
	if source == nil {
		return fmt.Errorf("import: there is no Secret %s", c.opts.ImportCA)
	}
	if err := importable(source, seen); err != nil {
		return fmt.Errorf("import of Secret %s: %w", c.opts.ImportCA, err)
	}

	// It has no Certificate: cert-manager would issue the CA anew.
	meta := c.metaOf(c.names.authorityName(generation))
	meta.Labels[c.names.key(labelRole)] = roleCA
	meta.Labels[c.names.key(labelGeneration)] = strconv.Itoa(generation)
	meta.Annotations = map[string]string{
		c.names.key(annotationImported): c.opts.ImportCA.String(), c.names.key(annotationRequest): seen.request,
	}

	return c.applyOwn(ctx, &corev1.Secret{
		TypeMeta: secretType(), ObjectMeta: meta, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			cmmeta.TLSCAKey:         source.Data[corev1.TLSCertKey],
			corev1.TLSCertKey:       source.Data[corev1.TLSCertKey],
			corev1.TLSPrivateKeyKey: source.Data[corev1.TLSPrivateKeyKey],
		},
	})
}

func importable(source *corev1.Secret, seen *observed) error {
	pair, err := keys.ParsePair(source.Data[corev1.TLSCertKey], source.Data[corev1.TLSPrivateKeyKey])
	switch {
	case err != nil:
		return fmt.Errorf("want a CA in tls.crt and its key in tls.key: %w", err)
	case !pair.Leaf.IsCA:
		return fmt.Errorf("%q in tls.crt is not a CA", pair.Leaf.Subject)
	case seen.now.After(pair.Leaf.NotAfter):
		return fmt.Errorf("the CA expired at %s", pair.Leaf.NotAfter)
	case seen.listener != nil && !slices.ContainsFunc(seen.bundle, pair.Leaf.Equal):
		return errors.New("its CA is not in ca.crt of the existing Secret of the listener, so peers may not trust it")
	default:
		return nil
	}
}

// markForIssue is needed because cert-manager does not react to a new CA. Conflicts with it are
// usual.
func (c *Certificates) markForIssue(ctx context.Context, name string) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		certificate, err := serverside.Get(ctx, c.client, c.keyOf(name), &certv1.Certificate{})
		if err != nil || certificate == nil || !c.names.isInSet(certificate) || isIssuing(certificate) {
			return err
		}

		setIssuing(certificate, metav1.NewTime(time.Now()))
		return c.client.Status().Update(ctx, certificate)
	})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("mark Certificate %s for issuing: %w", name, err)
	}
	return nil
}

// deleteOrphans deletes the Secrets that have no Certificate any more, as a key must not outlive
// its use. cert-manager does that only on request. It keeps all while there is no CA.
func (c *Certificates) deleteOrphans(ctx context.Context, seen *observed) error {
	if len(seen.authorities) == 0 {
		return nil
	}

	for name, meta := range seen.orphans {
		if err := c.deleteOrphan(ctx, &corev1.Secret{ObjectMeta: meta}); err != nil {
			return fmt.Errorf("delete Secret %s of a former Certificate: %w", name, err)
		}
	}
	return nil
}

// deleteOrphan keeps the Secret of a Certificate that has lost the labels of this set: another
// client has taken it over. A Secret that has changed since it was read is decided about in the
// next call.
func (c *Certificates) deleteOrphan(ctx context.Context, secret *corev1.Secret) error {
	certificate, err := serverside.Get(ctx, c.client, client.ObjectKeyFromObject(secret), &certv1.Certificate{})
	if err != nil || certificate != nil {
		return err
	}

	err = ownership.DeleteUnchanged(ctx, c.client, secret)
	if apierrors.IsConflict(err) {
		return nil
	}

	return err
}

func (c *Certificates) takeStep(ctx context.Context, seen *observed, s step) error {
	switch s.action {
	case actionDiscard, actionRetire:
		// deleteOrphans deletes the key of a CA with a Certificate in a later call: while the
		// Certificate exists, cert-manager would make a new key.
		for _, generation := range s.remove {
			if err := ownership.DeleteUnchanged(ctx, c.client, seen.objects[generation]); err != nil {
				return err
			}
		}
	case actionCreate:
		if c.opts.ImportCA.Name != "" && seen.isNew() {
			return c.importAuthority(ctx, seen, s.generation)
		}
		return c.applyOwn(ctx, c.authorityCertificate(s.generation, seen.request))
	case actionSignClients:
		return c.applyOwn(ctx, c.signingIssuer(c.names.clients(), s.generation))
	case actionSignServer:
		return c.applyOwn(ctx, c.signingIssuer(c.names.servers(), s.generation))
	case actionPublish:
		return c.publishListener(ctx, seen)
	case actionReissue:
		var failed error
		for _, l := range s.reissue {
			failed = errors.Join(failed, c.markForIssue(ctx, l.name))
		}
		return failed
	case actionReissueServer:
		return c.markForIssue(ctx, c.names.server())
	case actionNone:
	}
	return nil
}
