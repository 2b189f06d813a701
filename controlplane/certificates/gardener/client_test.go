package gardener_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates/gardener"
)

// newClient returns a client, and the objects that it applies.
func newClient(t *testing.T, issuerNamespace string, objects ...client.Object) (client.Client, *[]map[string]any) {
	t.Helper()

	var applied []map[string]any
	scheme := runtime.NewScheme() // The client adds kinds to it.
	check(t, corev1.AddToScheme(scheme))
	under := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Apply: func(_ context.Context, _ client.WithWatch, object runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
			applied = append(applied, object.(interface{ UnstructuredContent() map[string]any }).UnstructuredContent())
			return nil
		},
	}).Build()

	return gardener.NewClient(under, issuerNamespace), &applied
}

func apply(t *testing.T, c client.Client, kind string, object any) error {
	t.Helper()

	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	check(t, err)
	delete(content, "status")
	u := &unstructured.Unstructured{Object: content}

	if kind != "" {
		u.SetGroupVersionKind(certv1.SchemeGroupVersion.WithKind(kind))
	}

	return c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u))
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "kcp", Name: name, Labels: map[string]string{"set": "watcher"}}
}

func TestCertificatesAreTranslated(t *testing.T) {
	t.Parallel()

	c, applied := newClient(t, "issuers")
	certificate := &certv1.Certificate{ObjectMeta: meta("a"), Spec: certv1.CertificateSpec{
		CommonName: "runtime-a", DNSNames: []string{"a.example.com"}, SecretName: "a-tls",
		IssuerRef:      cmmeta.IssuerReference{Name: "watcher-clients"},
		SecretTemplate: &certv1.CertificateSecretTemplate{Labels: map[string]string{"role": "client"}},
		PrivateKey:     &certv1.CertificatePrivateKey{Algorithm: certv1.ECDSAKeyAlgorithm, Size: 256},
		Duration:       &metav1.Duration{Duration: time.Hour}, Usages: []certv1.KeyUsage{certv1.UsageClientAuth},
	}}

	check(t, apply(t, c, certv1.CertificateKind, certificate))
	want := []map[string]any{{
		"apiVersion": "cert.gardener.cloud/v1alpha1", "kind": "Certificate",
		"metadata": map[string]any{"namespace": "kcp", "name": "a", "labels": map[string]any{"set": "watcher"}},
		"spec": map[string]any{
			"commonName": "runtime-a", "dnsNames": []any{"a.example.com"}, "secretName": "a-tls",
			"issuerRef":    map[string]any{"name": "watcher-clients", "namespace": "issuers"},
			"secretLabels": map[string]any{"role": "client"},
			"privateKey":   map[string]any{"algorithm": "ECDSA", "size": int64(256)},
		},
	}}
	if diff := cmp.Diff(want, *applied); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}

	for namespace, issuer := range map[string]string{"issuers": "watcher-clients", "another": ""} {
		c, _ := newClient(t, namespace, &unstructured.Unstructured{Object: (*applied)[0]})
		var found certv1.Certificate
		check(t, c.Get(t.Context(), client.ObjectKeyFromObject(certificate), &found))
		if found.Spec.IssuerRef.Name != issuer || !cmp.Equal(found.Spec.SecretTemplate, certificate.Spec.SecretTemplate) {
			t.Errorf("with Issuers in %s: %+v, want the Issuer %q, and the labels", namespace, found.Spec, issuer)
		}
	}
}

// newAuthority is a CA of that life.
func newAuthority(life time.Duration, issuer string) *certv1.Certificate {
	return &certv1.Certificate{ObjectMeta: meta("watcher-ca-1"), Spec: certv1.CertificateSpec{
		CommonName: "watcher-ca-1", SecretName: "watcher-ca-1", IsCA: true, Duration: &metav1.Duration{Duration: life},
		IssuerRef: cmmeta.IssuerReference{Name: issuer},
	}}
}

func TestAuthoritiesAreMadeOnce(t *testing.T) {
	t.Parallel()

	c, applied := newClient(t, "")
	ca := newAuthority(time.Hour, "corporate")
	if err := apply(t, c, certv1.CertificateKind, ca); err == nil {
		t.Error("an Issuer that would have to sign the CA is ignored")
	}

	ca.Spec.IssuerRef.Name = "watcher-selfsigned"
	var made [2]corev1.Secret
	for n := range made {
		check(t, apply(t, c, certv1.CertificateKind, ca))
		check(t, c.Get(t.Context(), client.ObjectKeyFromObject(ca), &made[n]))
	}

	if len(*applied) > 0 || made[0].Data["tls.key"] == nil || !cmp.Equal(made[0].Data, made[1].Data) {
		t.Errorf("a second apply changes the CA, or it is applied elsewhere: %v", *applied)
	}
}

// A runtime with a clock that is slow must accept a new CA immediately.
func TestAuthoritiesAreBackdated(t *testing.T) {
	t.Parallel()

	const duration = 48 * time.Hour
	c, _ := newClient(t, "")
	ca := newAuthority(duration, "watcher-selfsigned")
	begun := time.Now().Truncate(time.Second) // Certificates have no smaller unit.
	check(t, apply(t, c, certv1.CertificateKind, ca))
	var made corev1.Secret
	check(t, c.Get(t.Context(), client.ObjectKeyFromObject(ca), &made))
	pair, err := tls.X509KeyPair(made.Data["tls.crt"], made.Data["tls.key"])
	check(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(pair.Leaf)

	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: begun.Add(-59 * time.Minute)}); err != nil {
		t.Errorf("with a clock that is 59 minutes slow: %v", err)
	}
	if pair.Leaf.NotAfter.Before(begun.Add(duration)) {
		t.Errorf("the CA ends at %v, want its whole life from now on", pair.Leaf.NotAfter)
	}
}

func TestSelfSignedIssuersAreLeftOut(t *testing.T) {
	t.Parallel()

	c, applied := newClient(t, "")
	selfSigned := &certv1.Issuer{ObjectMeta: meta("watcher-selfsigned")}
	selfSigned.Spec.SelfSigned = &certv1.SelfSignedIssuer{}
	signing := &certv1.Issuer{ObjectMeta: meta("watcher-clients")}
	signing.Spec.CA = &certv1.CAIssuer{SecretName: "watcher-ca-1"}

	for _, issuer := range []*certv1.Issuer{selfSigned, signing} {
		check(t, apply(t, c, certv1.IssuerKind, issuer))
	}

	want := map[string]any{"ca": map[string]any{
		"privateKeySecretRef": map[string]any{"name": "watcher-ca-1", "namespace": "kcp"},
	}}
	if len(*applied) != 1 || !cmp.Equal(want, (*applied)[0]["spec"]) {
		t.Errorf("applied %v, want the Issuer with a CA", *applied)
	}
}

// Another client changes a Certificate, as by a label, between the read and the request to
// issue the Certificate anew.
func TestARenewalIsOfTheCertificateThatWasRead(t *testing.T) {
	t.Parallel()
	for name, isTaken := range map[string]bool{"taken over": true, "the control": false} {
		stored := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
		stored.SetAPIVersion("cert.gardener.cloud/v1alpha1")
		stored.SetKind("Certificate")
		stored.SetNamespace("kcp")
		stored.SetName("a")
		c, _ := newClient(t, "", stored)
		read := &certv1.Certificate{}
		check(t, c.Get(t.Context(), client.ObjectKey{Namespace: "kcp", Name: "a"}, read))
		check(t, c.Get(t.Context(), client.ObjectKeyFromObject(read), stored))

		if isTaken {
			stored.SetLabels(map[string]string{"app": "shop"})
			check(t, c.Update(t.Context(), stored))
		}

		err := c.Status().Update(t.Context(), read)
		check(t, c.Get(t.Context(), client.ObjectKeyFromObject(read), stored))
		_, isRenewed, _ := unstructured.NestedString(stored.Object, "spec", "ensureRenewedAfter")
		if apierrors.IsConflict(err) != isTaken || isRenewed == isTaken {
			t.Errorf("%s: error %v, renewed: %t", name, err, isRenewed)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
