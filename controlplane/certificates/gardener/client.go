package gardener

import (
	"context"
	"fmt"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	switch object := object.(type) {
	case *certv1.Certificate:
		return t.getInto(ctx, key, "Certificate", opts, func(found *unstructured.Unstructured) error {
			return certificateFrom(found, object)
		})
	case *certv1.Issuer:
		return t.getInto(ctx, key, "Issuer", opts, func(found *unstructured.Unstructured) error {
			return issuerFrom(found, object)
		})
	default:
		return t.Client.Get(ctx, key, object, opts...)
	}
}

func (t *translator) getInto(
	ctx context.Context, key client.ObjectKey, kind string, opts []client.GetOption,
	translate func(*unstructured.Unstructured) error,
) error {
	found := newObject(kind)
	if err := t.Client.Get(ctx, key, found, opts...); err != nil {
		return err
	}
	return translate(found)
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
	applied, ok := object.(interface {
		GroupVersionKind() schema.GroupVersionKind
		UnstructuredContent() map[string]any
	})
	if !ok {
		return t.Client.Apply(ctx, object, opts...)
	}
	content := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(applied.UnstructuredContent())}
	switch gvk := applied.GroupVersionKind(); {
	case gvk == certv1.SchemeGroupVersion.WithKind(certv1.CertificateKind):
		return t.applyCertificate(ctx, content, opts)
	case gvk == certv1.SchemeGroupVersion.WithKind(certv1.IssuerKind):
		return t.applyIssuer(ctx, content, opts)
	default:
		translateOwners(content)
		return t.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(content), opts...)
	}
}

func (t *translator) applyCertificate(
	ctx context.Context, content *unstructured.Unstructured, opts []client.ApplyOption,
) error {
	var certificate certv1.Certificate
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content.Object, &certificate); err != nil {
		return fmt.Errorf("gardener: %w", err)
	}
	if certificate.Spec.IsCA {
		return t.ensureAuthority(ctx, &certificate)
	}
	return t.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(t.toCertificate(&certificate)), opts...)
}

// applyIssuer leaves out self-signed Issuers.
func (t *translator) applyIssuer(
	ctx context.Context, content *unstructured.Unstructured, opts []client.ApplyOption,
) error {
	var issuer certv1.Issuer
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content.Object, &issuer); err != nil {
		return fmt.Errorf("gardener: %w", err)
	}
	if issuer.Spec.CA == nil {
		return nil
	}
	return t.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(toIssuer(&issuer)), opts...)
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
	found := newObject("Certificate")
	found.SetNamespace(certificate.Namespace)
	found.SetName(certificate.Name)
	return t.Client.Delete(ctx, found, opts...)
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
	return w.translator.renew(ctx, certificate)
}

func (t *translator) renew(ctx context.Context, certificate *certv1.Certificate) error {
	var since metav1.Time
	for _, condition := range certificate.Status.Conditions {
		if condition.Type == certv1.CertificateConditionIssuing && condition.LastTransitionTime != nil {
			since = *condition.LastTransitionTime
		}
	}
	if since.IsZero() {
		return apierrors.NewBadRequest("gardener: want the condition Issuing with its time")
	}
	before := newObject("Certificate")
	before.SetNamespace(certificate.Namespace)
	before.SetName(certificate.Name)
	after := before.DeepCopy()
	set(after, since.UTC().Format("2006-01-02T15:04:05Z"), "spec", "ensureRenewedAfter")
	return t.Patch(ctx, after, client.MergeFrom(before))
}

func newObject(kind string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(groupVersion().WithKind(kind))
	return object
}
