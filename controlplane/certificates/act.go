package certificates

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
		certificate, err := get(ctx, c.client, c.key(name), &certv1.Certificate{})
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

// retire deletes the Certificates of the CAs that are older than a generation. sweep deletes their
// Secrets.
func (c *Certificates) retire(ctx context.Context, seen *observed, generation int) error {
	for i := range seen.certificates {
		certificate := &seen.certificates[i]
		if !retired(certificate, generation) {
			continue
		}
		if err := c.remove(ctx, certificate); err != nil {
			return fmt.Errorf("delete Certificate %s: %w", certificate.Name, err)
		}
	}
	return c.retireImported(ctx, seen, generation)
}

// discard deletes a CA that cert-manager has made in the place of a lost one. The Certificate goes
// first, or cert-manager would make a new Secret.
func (c *Certificates) discard(ctx context.Context, seen *observed, generation int) error {
	name := c.names.authority(generation)
	for i := range seen.certificates {
		if seen.certificates[i].Name != name {
			continue
		}
		if err := c.remove(ctx, &seen.certificates[i]); err != nil {
			return fmt.Errorf("delete Certificate %s: %w", name, err)
		}
	}
	if secret := seen.secrets[name]; secret != nil {
		if err := c.remove(ctx, secret); err != nil {
			return fmt.Errorf("delete Secret %s: %w", name, err)
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
	for name, secret := range seen.secrets {
		if secret.Labels[labelRole] != roleCA || seen.hasCertificate(name) || imported(secret) {
			continue
		}
		if err := c.remove(ctx, secret); err != nil {
			return fmt.Errorf("delete Secret %s of a retired CA: %w", name, err)
		}
	}
	return nil
}

func (o *observed) hasCertificate(name string) bool {
	return slices.ContainsFunc(o.certificates, func(c certv1.Certificate) bool { return c.Spec.SecretName == name })
}

// retired reports whether a Certificate is of a CA that is older than a generation.
func retired(certificate *certv1.Certificate, generation int) bool {
	have, err := strconv.Atoi(certificate.Labels[labelGeneration])
	return certificate.Labels[labelRole] == roleCA && err == nil && have < generation
}
