// Package gardener issues certificates with cert-management of Gardener, for control planes without
// cert-manager.
//
// [NewClient] translates between the two APIs. Package certificates reads and writes Certificates
// and Issuers of cert-manager. The API server gets Certificates and Issuers of
// cert.gardener.cloud/v1alpha1. All other objects pass unchanged.
//
// cert-management differs in these points:
//
//   - It has no self-signed CAs. The client makes the key and the certificate of a CA itself and
//     stores them in the Secret of the CA. CAIssuer of the options is refused.
//   - All certificates are valid for clients and for servers. They are valid for 90 days and are
//     renewed 30 days before they expire, so Duration and RenewBefore should keep their defaults.
//   - Issuers are in the namespace that is set in cert-management, unless the options name another
//     namespace.
package gardener

import (
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

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
)

func groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "cert.gardener.cloud", Version: "v1alpha1"}
}

// NewClient returns a client for certificates.New that is safe for concurrent use. If the Issuers
// are not in the default cluster of cert-management, issuerNamespace is added to each reference to
// an Issuer. An empty issuerNamespace adds nothing.
func NewClient(c client.Client, issuerNamespace string) client.Client {
	return &translator{Client: c, issuerNamespace: issuerNamespace}
}

type translator struct {
	client.Client

	issuerNamespace string
}

var _ certificates.BothUsagesIssuer = (*translator)(nil)

// IssuesBothUsages implements [certificates.BothUsagesIssuer].
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
		kind = "Certificate"
		translate = func() error { return t.certificateFrom(found, object) }
	case *certv1.Issuer:
		kind = "Issuer"
		translate = func() error { return issuerFrom(found, object) }
	default:
		return t.Client.Get(ctx, key, object, opts...)
	}

	found.SetGroupVersionKind(groupVersion().WithKind(kind))
	if err := t.Client.Get(ctx, key, found, opts...); err != nil {
		return err
	}

	return translate()
}

// List translates Certificates.
func (t *translator) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	into, ok := list.(*certv1.CertificateList)
	if !ok {
		return t.Client.List(ctx, list, opts...)
	}

	found := &unstructured.UnstructuredList{}
	found.SetGroupVersionKind(groupVersion().WithKind("CertificateList"))
	if err := t.Client.List(ctx, found, opts...); err != nil {
		return err
	}

	into.Items = make([]certv1.Certificate, len(found.Items))
	for i := range found.Items {
		if err := t.certificateFrom(&found.Items[i], &into.Items[i]); err != nil {
			return err
		}
	}

	into.SetContinue(found.GetContinue())
	return nil
}

// Apply translates Certificates and Issuers. Self-signed Issuers are omitted, because the client
// itself makes each CA.
func (t *translator) Apply(
	ctx context.Context, object runtime.ApplyConfiguration, opts ...client.ApplyOption,
) error {
	applied, ok := object.(interface{ UnstructuredContent() map[string]any })
	if !ok {
		return t.Client.Apply(ctx, object, opts...)
	}

	content := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(applied.UnstructuredContent())}
	switch content.GroupVersionKind() {
	case certv1.SchemeGroupVersion.WithKind(certv1.CertificateKind):
		var wanted certv1.Certificate
		if err := convert(content, &wanted); err != nil {
			return err
		}
		if wanted.Spec.IsCA {
			return t.ensureAuthority(ctx, &wanted)
		}

		content.Object["spec"] = t.specOf(content)
	case certv1.SchemeGroupVersion.WithKind(certv1.IssuerKind):
		ca, _, _ := unstructured.NestedString(content.Object, "spec", "ca", "secretName")
		if ca == "" {
			return nil
		}

		reference := map[string]any{"name": ca, "namespace": content.GetNamespace()}
		content.Object["spec"] = map[string]any{"ca": map[string]any{"privateKeySecretRef": reference}}
	default:
		return t.Client.Apply(ctx, object, opts...)
	}

	content.SetAPIVersion(groupVersion().String())
	return t.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(content), opts...)
}

// specOf translates the spec of a Certificate. Usages and times cannot be set.
func (t *translator) specOf(certificate *unstructured.Unstructured) map[string]any {
	field := func(path ...string) any {
		value, _, _ := unstructured.NestedFieldNoCopy(certificate.Object, append([]string{"spec"}, path...)...)
		return value
	}
	issuer := map[string]any{"name": field("issuerRef", "name")}
	key := map[string]any{"algorithm": field("privateKey", "algorithm"), "size": field("privateKey", "size")}

	if t.issuerNamespace != "" {
		issuer["namespace"] = t.issuerNamespace
	}

	spec := map[string]any{
		"commonName": field("commonName"), "dnsNames": field("dnsNames"), "issuerRef": issuer, "privateKey": key,
		"secretName": field("secretName"), "secretLabels": field("secretTemplate", "labels"),
	}
	maps.DeleteFunc(spec, func(_ string, value any) bool { return value == nil })
	return spec
}

// Delete translates Certificates.
func (t *translator) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	if certificate, ok := object.(*certv1.Certificate); ok {
		return t.Client.Delete(ctx, named(certificate), opts...)
	}
	return t.Client.Delete(ctx, object, opts...)
}

// Status supports only one change of the status: that a Certificate is to be issued again.
func (t *translator) Status() client.SubResourceWriter { return statusWriter{t.Client.Status(), t} }

type statusWriter struct {
	client.SubResourceWriter

	translator *translator
}

// Update makes cert-management issue a certificate again. Like any update, it fails with a conflict
// if the Certificate has changed since it was read, for example because another client has taken it
// over.
func (w statusWriter) Update(ctx context.Context, object client.Object, opts ...client.SubResourceUpdateOption) error {
	certificate, ok := object.(*certv1.Certificate)
	if !ok {
		return w.SubResourceWriter.Update(ctx, object, opts...)
	}

	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"ensureRenewedAfter":%q}}`,
		certificate.ResourceVersion, time.Now().UTC().Format(time.RFC3339))
	return w.translator.Patch(ctx, named(certificate), client.RawPatch(types.MergePatchType, []byte(patch)))
}

func named(certificate *certv1.Certificate) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(groupVersion().WithKind("Certificate"))
	object.SetNamespace(certificate.Namespace)
	object.SetName(certificate.Name)

	return object
}

// convert reads an object into one of the other API, which has the same names, without the status.
func convert(from *unstructured.Unstructured, into any) error {
	content := maps.Clone(from.Object)
	delete(content, "status")
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, into); err != nil {
		return fmt.Errorf("gardener: %s %s: %w", from.GetKind(), from.GetName(), err)
	}
	return nil
}

func (t *translator) certificateFrom(found *unstructured.Unstructured, into *certv1.Certificate) error {
	if err := convert(found, into); err != nil {
		return err
	}

	labels, _, _ := unstructured.NestedStringMap(found.Object, "spec", "secretLabels")
	into.Spec.SecretTemplate = &certv1.CertificateSecretTemplate{Labels: labels}
	namespace, _, _ := unstructured.NestedString(found.Object, "spec", "issuerRef", "namespace")
	if namespace != t.issuerNamespace {
		into.Spec.IssuerRef = cmmeta.IssuerReference{} // An Issuer in another namespace is another Issuer.
	}

	field := func(name string) string {
		value, _, _ := unstructured.NestedString(found.Object, "status", name)
		return value
	}
	observed, _, _ := unstructured.NestedInt64(found.Object, "status", "observedGeneration")
	status := cmmeta.ConditionFalse
	if field("state") == "Pending" || observed < found.GetGeneration() {
		status = cmmeta.ConditionTrue
	}

	into.Status = certv1.CertificateStatus{Conditions: []certv1.CertificateCondition{{
		Type: certv1.CertificateConditionIssuing, Status: status, Message: field("message"),
	}}}
	if field("state") == "Error" {
		into.Status.LastFailureTime = failureTime(field("lastPendingTimestamp"), into)
	}

	return nil
}

// failureTime is never nil, because cert-manager's status has a time for each failure. Unless the
// state names a time, the time of the creation counts.
func failureTime(text string, of *certv1.Certificate) *metav1.Time {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return &of.CreationTimestamp
	}
	return new(metav1.NewTime(at))
}

func issuerFrom(found *unstructured.Unstructured, into *certv1.Issuer) error {
	err := convert(found, into)
	if ca := into.Spec.CA; ca != nil {
		ca.SecretName, _, _ = unstructured.NestedString(found.Object, "spec", "ca", "privateKeySecretRef", "name")
	}
	return err
}

// backdate makes a CA valid on a machine with a clock that is a little slow.
const backdate = time.Hour

// ensureAuthority makes the Secret of a CA itself, because cert-management signs no CAs. A CA that
// an issuer other than the self-signed issuer should sign is an error.
func (t *translator) ensureAuthority(ctx context.Context, wanted *certv1.Certificate) error {
	if !strings.HasSuffix(wanted.Spec.IssuerRef.Name, "selfsigned") {
		return errors.New("gardener: want no CAIssuer: cert-management signs no CAs")
	}

	secret := &corev1.Secret{ObjectMeta: wanted.ObjectMeta, Type: corev1.SecretTypeTLS}
	err := t.Client.Get(ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{})
	if !apierrors.IsNotFound(err) {
		return err
	}

	secret.Data, err = selfSigned(wanted)
	if err != nil {
		return fmt.Errorf("gardener: make CA %s: %w", wanted.Name, err)
	}

	err = t.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) { // Of another replica.
		return nil
	}
	return err
}

// selfSigned returns the data of a Secret. The key is an ECDSA key on P-256, or on P-384 if
// requested.
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

	now := time.Now()
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: ca.Spec.CommonName},
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
