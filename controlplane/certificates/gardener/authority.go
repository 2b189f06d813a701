package gardener

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"strings"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// labelAuthority marks the Secrets of CAs that this package has made.
const labelAuthority = "operator.kyma-project.io/gardener-ca"

// backdate makes a CA valid on a machine with a clock that is a little slow.
const backdate = time.Hour

// ensureAuthority makes a self-signed CA, unless its Secret exists.
func (t *translator) ensureAuthority(ctx context.Context, wanted *certv1.Certificate) error {
	if !strings.HasSuffix(wanted.Spec.IssuerRef.Name, "selfsigned") {
		return errors.New("gardener: want no CAIssuer: cert-management signs no CAs")
	}
	secret := secretOf(wanted)
	err := t.Client.Get(ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	if secret.Data, err = selfSigned(wanted); err != nil {
		return fmt.Errorf("gardener: make CA %s: %w", wanted.Name, err)
	}
	err = t.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) { // Of another replica.
		return nil
	}
	return err
}

// secretOf returns the Secret of a CA, without its keys.
func secretOf(ca *certv1.Certificate) *corev1.Secret {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ca.Namespace, Name: cmp.Or(ca.Spec.SecretName, ca.Name),
			Labels: map[string]string{labelAuthority: "true"}, Annotations: ca.Annotations,
		},
		Type: corev1.SecretTypeTLS,
	}
	maps.Copy(secret.Labels, ca.Labels)
	if template := ca.Spec.SecretTemplate; template != nil {
		maps.Copy(secret.Labels, template.Labels)
	}
	return secret
}

// authorities returns a Certificate for each CA that this package has made.
func (t *translator) authorities(ctx context.Context, asked *client.ListOptions) ([]certv1.Certificate, error) {
	var secrets corev1.SecretList
	same := &client.ListOptions{Namespace: asked.Namespace, LabelSelector: asked.LabelSelector}
	if err := t.Client.List(ctx, &secrets, same, client.MatchingLabels{labelAuthority: "true"}); err != nil {
		return nil, err
	}
	all := make([]certv1.Certificate, len(secrets.Items))
	for i := range secrets.Items {
		all[i].ObjectMeta = secrets.Items[i].ObjectMeta
		all[i].Spec.IsCA, all[i].Spec.SecretName = true, secrets.Items[i].Name
	}
	return all, nil
}

// selfSigned returns the data of a Secret. The key is of ECDSA P-256, or P-384 on request.
func selfSigned(ca *certv1.Certificate) (map[string][]byte, error) {
	const strong = 384
	curve := elliptic.P256()
	if key := ca.Spec.PrivateKey; key != nil && key.Size == strong {
		curve = elliptic.P384()
	}
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		return nil, err
	}
	const serialBits = 127
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: ca.Spec.CommonName},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(ca.Spec.Duration.Duration),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return map[string][]byte{
		corev1.ServiceAccountRootCAKey: certificate, corev1.TLSCertKey: certificate,
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}),
	}, nil
}
