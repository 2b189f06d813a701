package certificates

import (
	"context"
	"errors"
	"fmt"
	"slices"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
)

func (c *Certificates) createAuthority(ctx context.Context, seen *observed, generation int, request string) error {
	if c.opts.ImportCA.Name != "" && seen.isNew() {
		return c.importAuthority(ctx, seen, generation, request)
	}
	return c.apply(ctx, c.authority(generation, request))
}

// publish writes the bundle and the server certificate in one Secret, so that they never mix
// generations.
func (c *Certificates) publish(ctx context.Context, seen *observed) error {
	server := seen.serverSecret(c.names)
	if server == nil {
		return errors.New("the server has no certificate")
	}
	bundle := compose(seen.bundle, slices.Concat(seen.issued, seen.additional), seen.now)
	since := seen.published.since
	for _, certificate := range bundle {
		if !slices.Contains(seen.published.bundle, fingerprint(certificate)) {
			since = c.opts.Now()
		}
	}
	secret := &corev1.Secret{
		ObjectMeta: c.meta(""), Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			cmmeta.TLSCAKey:         encode(bundle),
			corev1.TLSCertKey:       server.Data[corev1.TLSCertKey],
			corev1.TLSPrivateKeyKey: server.Data[corev1.TLSPrivateKeyKey],
		},
	}
	key := c.ListenerSecret()
	secret.Namespace, secret.Name = key.Namespace, key.Name
	secret.Annotations = map[string]string{
		annotationBundleSince: stamp(since), annotationAdditional: seen.additionalValue(),
	}
	if seen.listener != nil {
		secret.Type = seen.listener.Type // It cannot be changed, and another program may have made the Secret.
	}
	return c.apply(ctx, secret)
}

func (c *Certificates) reissueAll(ctx context.Context, leaves []leaf) error {
	var failed []error
	for _, l := range leaves {
		failed = append(failed, c.reissue(ctx, l.name))
	}
	return errors.Join(failed...)
}

// reissue makes cert-manager issue a new certificate and key, which it does not do for a new CA.
// cert-manager writes the same status, so conflicts are usual.
func (c *Certificates) reissue(ctx context.Context, name string) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		certificate, err := serverside.Get(ctx, c.client, c.key(name), &certv1.Certificate{})
		if err != nil || certificate == nil || isIssuing(certificate) {
			return err
		}
		setIssuing(certificate, metav1.NewTime(c.opts.Now()))
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

// removeAuthorities deletes the CAs of some generations: first their Certificates, for which
// cert-manager would make new Secrets, and then their keys.
func (c *Certificates) removeAuthorities(ctx context.Context, seen *observed, isOld func(generation int) bool) error {
	var old []client.Object
	for _, certificate := range seen.certificates {
		old = append(old, certificate)
	}
	for _, secret := range seen.secrets {
		old = append(old, secret)
	}
	for _, object := range old {
		if generation := generationOf(object); generation <= 0 || !isOld(generation) {
			continue
		}
		if err := c.remove(ctx, object); err != nil {
			return fmt.Errorf("delete %s %s of a CA: %w", kindOf(object).Kind, object.GetName(), err)
		}
	}
	return nil
}

// sweep deletes the keys of CAs that have no Certificate any more. It keeps all while there is no
// other CA.
func (c *Certificates) sweep(ctx context.Context, seen *observed) error {
	if len(seen.authorities) == 0 {
		return nil
	}
	kept := make(map[string]bool)
	for _, certificate := range seen.certificates {
		kept[certificate.Spec.SecretName] = true
	}
	for name, secret := range seen.secrets {
		if secret.Labels[labelRole] != roleCA || kept[name] || imported(secret) {
			continue
		}
		if err := c.remove(ctx, secret); err != nil {
			return fmt.Errorf("delete Secret %s of a retired CA: %w", name, err)
		}
	}
	return nil
}
