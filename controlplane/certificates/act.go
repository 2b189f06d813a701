package certificates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// wantedListener has bundle and certificate in one Secret, so that they never mix generations.
// observe calls it.
func (c *Certificates) wantedListener(o *observed) *corev1.Secret {
	server := o.serverSecret()
	if server == nil {
		return nil
	}

	bundle := compose(o.bundle, slices.Concat(o.issued, o.additional), o.now)
	since := o.published.since
	for _, ca := range bundle {
		if !slices.ContainsFunc(o.bundle, ca.Equal) {
			since = o.now
		}
	}

	secret := &corev1.Secret{
		TypeMeta: secretType(), ObjectMeta: c.meta(""), Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			cmmeta.TLSCAKey:         encode(bundle),
			corev1.TLSCertKey:       server.Data[corev1.TLSCertKey],
			corev1.TLSPrivateKeyKey: server.Data[corev1.TLSPrivateKeyKey],
		},
	}

	key := c.ListenerSecret()
	secret.Namespace = key.Namespace
	secret.Name = key.Name
	secret.Annotations = map[string]string{
		c.names.key(annotationBundleSince): since.UTC().Format(time.RFC3339Nano),
		c.names.key(annotationAdditional):  strings.Join(fingerprints(o.additional), ","),
	}

	if o.listener != nil {
		secret.Type = o.listener.Type // It cannot be changed, and another program may have made the Secret.
	}

	return secret
}

// isPublished ignores other keys of the listener's Secret. A Secret without the mark of this set is
// written again: an import takes it over, and until then no agent gets its bundle.
func (o *observed) isPublished() bool {
	if o.listener == nil || o.wanted == nil || !o.names.has(o.listener) {
		return false
	}

	for key, value := range o.wanted.Data {
		if !bytes.Equal(value, o.listener.Data[key]) {
			return false
		}
	}

	for key, value := range o.wanted.Annotations {
		if value != o.listener.Annotations[key] {
			return false
		}
	}
	return true
}

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
	meta := c.meta(c.names.authority(generation))
	meta.Labels[c.names.key(labelRole)] = roleCA
	meta.Labels[c.names.key(labelGeneration)] = strconv.Itoa(generation)
	meta.Annotations = map[string]string{
		c.names.key(annotationImported): c.opts.ImportCA.String(), c.names.key(annotationRequest): seen.request,
	}

	return c.apply(ctx, &corev1.Secret{
		TypeMeta: secretType(), ObjectMeta: meta, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			cmmeta.TLSCAKey:         source.Data[corev1.TLSCertKey],
			corev1.TLSCertKey:       source.Data[corev1.TLSCertKey],
			corev1.TLSPrivateKeyKey: source.Data[corev1.TLSPrivateKeyKey],
		},
	})
}

func secretType() metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Secret"}
}

func (o *observed) isNew() bool {
	return len(o.authorities) == 0 && o.clientSigner == 0 && o.serverSigner == 0
}

func importable(source *corev1.Secret, seen *observed) error {
	pair, err := keys.ParsePair(source.Data[corev1.TLSCertKey], source.Data[corev1.TLSPrivateKeyKey])
	switch {
	case err != nil:
		return fmt.Errorf("want a CA in tls.crt and its key in tls.key: %w", err)
	case !pair.Leaf.IsCA:
		return fmt.Errorf("%q in tls.crt is no CA", pair.Leaf.Subject)
	case seen.now.After(pair.Leaf.NotAfter):
		return fmt.Errorf("the CA is expired since %s", pair.Leaf.NotAfter)
	case seen.listener != nil && !slices.ContainsFunc(seen.bundle, pair.Leaf.Equal):
		return errors.New("its CA is not in ca.crt of the existing Secret of the listener, so peers may not trust it")
	default:
		return nil
	}
}

func (n objectNames) imported(object client.Object) bool {
	return n.annotation(object, annotationImported) != ""
}

// standsAlone means that cert-manager did not issue the CA: its Secret has no Certificate.
func (n objectNames) standsAlone(secret *corev1.Secret) bool {
	_, made := secret.Annotations[n.key(annotationRequest)]
	return made
}

// reissue is needed because cert-manager does not react to a new CA. Conflicts with it are usual.
func (c *Certificates) reissue(ctx context.Context, name string) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		certificate, err := serverside.Get(ctx, c.client, c.key(name), &certv1.Certificate{})
		if err != nil || certificate == nil || !c.names.has(certificate) || isIssuing(certificate) {
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

func isIssuing(certificate *certv1.Certificate) bool {
	return slices.ContainsFunc(certificate.Status.Conditions, func(condition certv1.CertificateCondition) bool {
		return condition.Type == certv1.CertificateConditionIssuing && condition.Status == cmmeta.ConditionTrue
	})
}

func setIssuing(certificate *certv1.Certificate, now metav1.Time) {
	isOld := func(c certv1.CertificateCondition) bool { return c.Type == certv1.CertificateConditionIssuing }
	certificate.Status.Conditions = slices.DeleteFunc(certificate.Status.Conditions, isOld)
	certificate.Status.Conditions = append(certificate.Status.Conditions, certv1.CertificateCondition{
		Type: certv1.CertificateConditionIssuing, Status: cmmeta.ConditionTrue, Reason: "CARotated",
		Message: "Its CA is being replaced", LastTransitionTime: &now, ObservedGeneration: certificate.Generation,
	})
}

// sweep deletes the Secrets that have no Certificate any more, as a key must not outlive its use.
// cert-manager does that only on request. It keeps all while there is no CA.
func (c *Certificates) sweep(ctx context.Context, seen *observed) error {
	if len(seen.authorities) == 0 {
		return nil
	}

	for name, meta := range seen.orphans {
		if err := c.sweepKey(ctx, &corev1.Secret{ObjectMeta: meta}); err != nil {
			return fmt.Errorf("delete Secret %s of a former Certificate: %w", name, err)
		}
	}
	return nil
}

// sweepKey keeps the Secret of a Certificate that has lost the labels of this set: another client
// has taken it over. A Secret that has changed since it was read is decided about in the next call.
func (c *Certificates) sweepKey(ctx context.Context, secret *corev1.Secret) error {
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
