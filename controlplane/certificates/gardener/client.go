// Package gardener issues certificates with cert-management of Gardener, for control planes without
// cert-manager.
//
// [NewClient] translates between the two: package certificates writes and reads Certificates and
// Issuers of cert-manager, and the API server gets those of cert.gardener.cloud/v1alpha1. Secrets
// and all other objects pass unchanged.
//
// cert-management differs in these points:
//
//   - It has no self-signed CAs. The client makes the key and the certificate of a CA itself, and
//     stores them in the Secret of the CA. CAIssuer of the options is refused.
//   - All certificates are for clients and for servers. They are valid for 90 days and are renewed
//     30 days before the end, so Duration and RenewBefore should keep their defaults.
//   - Issuers are in the namespace that is set in cert-management, unless the options name one.
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
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
)

func groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "cert.gardener.cloud", Version: "v1alpha1"}
}

// NewClient returns a client for certificates.New. Its methods may be called concurrently. The
// namespace is written into the references to Issuers, for Issuers in another cluster than the
// default one of cert-management. Empty means none.
func NewClient(c client.Client, issuerNamespace string) client.Client {
	return &translator{Client: c, issuerNamespace: issuerNamespace}
}

type translator struct {
	client.Client

	issuerNamespace string
}

// IssuesBothUsages reports that each certificate is for clients and for servers.
func (*translator) IssuesBothUsages() bool { return true }

// Get translates Certificates and Issuers.
func (t *translator) Get(
	ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption,
) error {
	found := &unstructured.Unstructured{}
	var kind string
	var translate func() error
	switch object := object.(type) {
	case *certv1.Certificate:
		kind, translate = "Certificate", func() error { return certificateFrom(found, object) }
	case *certv1.Issuer:
		kind, translate = "Issuer", func() error { return issuerFrom(found, object) }
	default:
		return t.Client.Get(ctx, key, object, opts...)
	}
	found.SetGroupVersionKind(groupVersion().WithKind(kind))
	if err := t.Client.Get(ctx, key, found, opts...); err != nil {
		return err
	}
	return translate()
}

// List translates Certificates. Those of CAs come first.
func (t *translator) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	certificates, ok := list.(*certv1.CertificateList)
	if !ok {
		return t.Client.List(ctx, list, opts...)
	}
	certificates.Items = nil
	if asked := (&client.ListOptions{}).ApplyOptions(opts); asked.Continue == "" {
		authorities, err := t.authorities(ctx, asked)
		if err != nil {
			return err
		}
		certificates.Items = authorities
	}
	found := &unstructured.UnstructuredList{}
	found.SetGroupVersionKind(groupVersion().WithKind("CertificateList"))
	if err := t.Client.List(ctx, found, opts...); err != nil {
		return err
	}
	for i := range found.Items {
		var certificate certv1.Certificate
		if err := certificateFrom(&found.Items[i], &certificate); err != nil {
			return err
		}
		certificates.Items = append(certificates.Items, certificate)
	}
	certificates.SetContinue(found.GetContinue())
	return nil
}

// Apply translates Certificates and Issuers, and references to them.
func (t *translator) Apply(
	ctx context.Context, object runtime.ApplyConfiguration, opts ...client.ApplyOption,
) error {
	applied, ok := object.(interface{ UnstructuredContent() map[string]any })
	if !ok {
		return t.Client.Apply(ctx, object, opts...)
	}
	copied := runtime.DeepCopyJSON(applied.UnstructuredContent())
	content, err := t.translate(ctx, &unstructured.Unstructured{Object: copied})
	if content == nil || err != nil {
		return err
	}
	return t.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(content), opts...)
}

// translate returns the object to apply, nil for none: self-signed Issuers are left out, and a CA
// is made here.
func (t *translator) translate(
	ctx context.Context, content *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	convert := runtime.DefaultUnstructuredConverter.FromUnstructured
	switch content.GroupVersionKind() {
	case certv1.SchemeGroupVersion.WithKind(certv1.CertificateKind):
		var certificate certv1.Certificate
		if err := convert(content.Object, &certificate); err != nil {
			return nil, fmt.Errorf("gardener: %w", err)
		}
		if certificate.Spec.IsCA {
			return nil, t.ensureAuthority(ctx, &certificate)
		}
		return t.toCertificate(&certificate)
	case certv1.SchemeGroupVersion.WithKind(certv1.IssuerKind):
		var issuer certv1.Issuer
		if err := convert(content.Object, &issuer); err != nil {
			return nil, fmt.Errorf("gardener: %w", err)
		}
		if issuer.Spec.CA == nil {
			return nil, nil
		}
		return toIssuer(&issuer)
	default:
		translateOwners(content)
		return content, nil
	}
}

// Delete translates Certificates. It deletes the Secret of a CA.
func (t *translator) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	certificate, ok := object.(*certv1.Certificate)
	if !ok {
		return t.Client.Delete(ctx, object, opts...)
	}
	if certificate.Spec.IsCA {
		return t.Client.Delete(ctx, secretOf(certificate), opts...)
	}
	return t.Client.Delete(ctx, named(certificate), opts...)
}

// Status writes one status: that a Certificate is to be issued anew.
func (t *translator) Status() client.SubResourceWriter { return statusWriter{t.Client.Status(), t} }

type statusWriter struct {
	client.SubResourceWriter

	translator *translator
}

// Update makes cert-management issue a certificate anew.
func (w statusWriter) Update(ctx context.Context, object client.Object, opts ...client.SubResourceUpdateOption) error {
	certificate, ok := object.(*certv1.Certificate)
	if !ok {
		return w.SubResourceWriter.Update(ctx, object, opts...)
	}
	var since metav1.Time
	for _, condition := range certificate.Status.Conditions {
		if condition.Type == certv1.CertificateConditionIssuing && condition.LastTransitionTime != nil {
			since = *condition.LastTransitionTime
		}
	}
	if since.IsZero() {
		return apierrors.NewBadRequest("gardener: want the condition Issuing with its time")
	}
	patch := fmt.Sprintf(`{"spec":{"ensureRenewedAfter":%q}}`, since.UTC().Format(time.RFC3339))
	return w.translator.Patch(ctx, named(certificate), client.RawPatch(types.MergePatchType, []byte(patch)))
}

func named(certificate *certv1.Certificate) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(groupVersion().WithKind("Certificate"))
	object.SetNamespace(certificate.Namespace)
	object.SetName(certificate.Name)
	return object
}

// certificate has the fields of a Certificate of cert-management that matter here. Usages and times
// cannot be set there.
type certificate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		CommonName   string            `json:"commonName,omitempty"`
		DNSNames     []string          `json:"dnsNames"`
		SecretName   string            `json:"secretName"`
		SecretLabels map[string]string `json:"secretLabels,omitempty"`
		IssuerRef    struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace,omitempty"`
		} `json:"issuerRef"`
		PrivateKey *certv1.CertificatePrivateKey `json:"privateKey,omitempty"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration   int64        `json:"observedGeneration"`
		State                string       `json:"state"`
		Message              string       `json:"message"`
		LastPendingTimestamp *metav1.Time `json:"lastPendingTimestamp"`
	} `json:"status"`
}

func certificateFrom(found *unstructured.Unstructured, into *certv1.Certificate) error {
	var read certificate
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &read); err != nil {
		return fmt.Errorf("gardener: Certificate %s: %w", found.GetName(), err)
	}
	*into = certv1.Certificate{ObjectMeta: read.ObjectMeta, Spec: certv1.CertificateSpec{
		CommonName: read.Spec.CommonName, DNSNames: read.Spec.DNSNames, SecretName: read.Spec.SecretName,
	}}
	status := cmmeta.ConditionFalse
	if read.Status.State == "Pending" || read.Status.ObservedGeneration < read.Generation {
		status = cmmeta.ConditionTrue
	}
	into.Status.Conditions = []certv1.CertificateCondition{{
		Type: certv1.CertificateConditionIssuing, Status: status, Message: read.Status.Message,
	}}
	if read.Status.State == "Error" {
		into.Status.LastFailureTime = &read.CreationTimestamp
		if read.Status.LastPendingTimestamp != nil {
			into.Status.LastFailureTime = read.Status.LastPendingTimestamp
		}
	}
	return nil
}

func (t *translator) toCertificate(from *certv1.Certificate) (*unstructured.Unstructured, error) {
	to := certificate{TypeMeta: typeMeta("Certificate"), ObjectMeta: from.ObjectMeta}
	to.Spec.CommonName, to.Spec.DNSNames = from.Spec.CommonName, from.Spec.DNSNames
	to.Spec.SecretName = from.Spec.SecretName
	to.Spec.IssuerRef.Name, to.Spec.IssuerRef.Namespace = from.Spec.IssuerRef.Name, t.issuerNamespace
	if template := from.Spec.SecretTemplate; template != nil {
		to.Spec.SecretLabels = template.Labels
	}
	if key := from.Spec.PrivateKey; key != nil {
		to.Spec.PrivateKey = &certv1.CertificatePrivateKey{Algorithm: key.Algorithm, Size: key.Size}
	}
	return contentOf(&to)
}

func issuerFrom(found *unstructured.Unstructured, into *certv1.Issuer) error {
	var read metav1.PartialObjectMetadata
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &read); err != nil {
		return fmt.Errorf("gardener: Issuer %s: %w", found.GetName(), err)
	}
	*into = certv1.Issuer{ObjectMeta: read.ObjectMeta}
	if ca, _, _ := unstructured.NestedString(found.Object, "spec", "ca", "privateKeySecretRef", "name"); ca != "" {
		into.Spec.CA = &certv1.CAIssuer{SecretName: ca}
	}
	return nil
}

func toIssuer(from *certv1.Issuer) (*unstructured.Unstructured, error) {
	to, err := contentOf(&metav1.PartialObjectMetadata{TypeMeta: typeMeta("Issuer"), ObjectMeta: from.ObjectMeta})
	if err != nil {
		return nil, err
	}
	ca := map[string]any{"name": from.Spec.CA.SecretName, "namespace": from.Namespace}
	to.Object["spec"] = map[string]any{"ca": map[string]any{"privateKeySecretRef": ca}}
	return to, nil
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: groupVersion().String(), Kind: kind}
}

func contentOf(object any) (*unstructured.Unstructured, error) {
	content, err := serverside.Content(object)
	return &unstructured.Unstructured{Object: content}, err
}

// translateOwners corrects references to Certificates. The garbage collector would delete an object
// with an owner that does not exist.
func translateOwners(object *unstructured.Unstructured) {
	owners := object.GetOwnerReferences()
	for i := range owners {
		if owners[i].APIVersion == certv1.SchemeGroupVersion.String() {
			owners[i].APIVersion = groupVersion().String()
		}
	}
	if len(owners) > 0 {
		object.SetOwnerReferences(owners)
	}
}

// labelAuthority marks the Secrets of CAs that this package has made.
const labelAuthority = "operator.kyma-project.io/gardener-ca"

// backdate makes a CA valid on a machine with a clock that is a little slow.
const backdate = time.Hour

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
