package certificates

import (
	"context"
	"fmt"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// apply creates an object or corrects what this package wants of it, and leaves the rest of it alone. What is applied is what the
// object says, so a field that is not in it any more is removed.
func (c *Certificates) apply(ctx context.Context, object client.Object) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return fmt.Errorf("certificates: convert %s: %w", object.GetName(), err)
	}

	// What controllers write is not ours, even if it is empty.
	delete(content, "status")

	applied := &unstructured.Unstructured{Object: content}
	applied.SetGroupVersionKind(kindOf(object))

	err = c.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner(FieldOwner), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("certificates: apply %s %s: %w", applied.GetKind(), object.GetName(), err)
	}

	return nil
}

// kindOf does without the scheme of the client, which may not know the types of cert-manager when they are written only.
func kindOf(object client.Object) schema.GroupVersionKind {
	switch object.(type) {
	case *certv1.Issuer:
		return certv1.SchemeGroupVersion.WithKind(certv1.IssuerKind)
	case *certv1.Certificate:
		return certv1.SchemeGroupVersion.WithKind(certv1.CertificateKind)
	default:
		return corev1.SchemeGroupVersion.WithKind("Secret")
	}
}
