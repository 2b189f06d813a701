package certificates

import (
	"context"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
)

func (c *Certificates) apply(ctx context.Context, object client.Object) error {
	content, err := serverside.Content(object)
	if err != nil {
		return err
	}
	applied := &unstructured.Unstructured{Object: content}
	applied.SetGroupVersionKind(kindOf(object))
	return serverside.Apply(ctx, c.client, applied, fieldOwner)
}

// kindOf needs no scheme: that of the client may not have the types of cert-manager.
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
