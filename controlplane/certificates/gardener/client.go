package gardener

import (
	"context"
	"fmt"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// groupVersion is that of cert-management.
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

// named returns the name of a Certificate of cert-management.
func named(certificate *certv1.Certificate) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(groupVersion().WithKind("Certificate"))
	object.SetNamespace(certificate.Namespace)
	object.SetName(certificate.Name)
	return object
}
