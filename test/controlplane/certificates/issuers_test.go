package certificates_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates/gardener"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// issuers are programs that issue certificates. A rotation is that of each of them.
func issuers() map[string]func(testing.TB) place {
	return map[string]func(testing.TB) place{
		"cert-manager": startPlane, "cert-management of Gardener": startGardener,
	}
}

// startGardener starts a controller that acts as cert-management v0.16.0 does.
func startGardener(t testing.TB) place {
	t.Helper()
	plane := startShared(t)
	mgr := rig.NewManager(t, plane.Config, nil)
	kind := ofGardener("Certificate")
	rig.NoError(t, ctrl.NewControllerManagedBy(mgr).For(kind).Complete(&certManagement{plane.Client}))
	rig.Run(t, "cert-management", mgr.Start)
	at := newPlace(t, plane.Client)
	at.Client = gardener.NewClient(plane.Client, "")
	return at
}

// ofGardener returns an empty object of cert-management.
func ofGardener(kind string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("cert.gardener.cloud/v1alpha1")
	object.SetKind(kind)
	return object
}

// certManagement issues with CA issuers, for 90 days, both usages, and again after
// ensureRenewedAfter.
type certManagement struct{ client.Client }

func (m *certManagement) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	certificate := ofGardener("Certificate")
	if err := m.Get(ctx, request.NamespacedName, certificate); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	ca, err := m.authority(ctx, certificate)
	if err != nil {
		return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, m.report(ctx, certificate, "Error", err.Error())
	}
	secret := &corev1.Secret{}
	name, _, _ := unstructured.NestedString(certificate.Object, "spec", "secretName")
	err = m.Get(ctx, client.ObjectKey{Namespace: request.Namespace, Name: name}, secret)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	if wantsNew(certificate, secret) {
		if err := m.report(ctx, certificate, "Pending", "requested"); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{RequeueAfter: time.Millisecond}, m.issue(ctx, certificate, name, ca)
	}
	return reconcile.Result{}, m.report(ctx, certificate, "Ready", "issued")
}

func (m *certManagement) authority(ctx context.Context, certificate *unstructured.Unstructured) (*tls.Certificate, error) {
	issuer := ofGardener("Issuer")
	name, _, _ := unstructured.NestedString(certificate.Object, "spec", "issuerRef", "name")
	if err := m.Get(ctx, client.ObjectKey{Namespace: certificate.GetNamespace(), Name: name}, issuer); err != nil {
		return nil, err
	}
	name, _, _ = unstructured.NestedString(issuer.Object, "spec", "ca", "privateKeySecretRef", "name")
	of, _, _ := unstructured.NestedString(issuer.Object, "spec", "ca", "privateKeySecretRef", "namespace")
	secret := &corev1.Secret{}
	if err := m.Get(ctx, client.ObjectKey{Namespace: of, Name: name}, secret); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	return &pair, err
}

// wantsNew reports whether the issued certificate differs from the requested one.
func wantsNew(certificate *unstructured.Unstructured, secret *corev1.Secret) bool {
	block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
	if block == nil {
		return true
	}
	issued, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return true
	}
	after, _, _ := unstructured.NestedString(certificate.Object, "spec", "ensureRenewedAfter")
	if since, err := time.Parse(time.RFC3339, after); err == nil && issued.NotBefore.Before(since) {
		return true
	}
	name, _, _ := unstructured.NestedString(certificate.Object, "spec", "commonName")
	names, _, _ := unstructured.NestedStringSlice(certificate.Object, "spec", "dnsNames")
	return issued.Subject.CommonName != name || fmt.Sprint(issued.DNSNames) != fmt.Sprint(names)
}

func (m *certManagement) issue(
	ctx context.Context, certificate *unstructured.Unstructured, secretName string, ca *tls.Certificate,
) error {
	name, _, _ := unstructured.NestedString(certificate.Object, "spec", "commonName")
	names, _, _ := unstructured.NestedStringSlice(certificate.Object, "spec", "dnsNames")
	labels, _, _ := unstructured.NestedStringMap(certificate.Object, "spec", "secretLabels")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: names,
		NotBefore: time.Now(), NotAfter: time.Now().Add(90 * 24 * time.Hour), BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		return err
	}
	text, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	var issuing bytes.Buffer
	_ = pem.Encode(&issuing, &pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate[0]}) // To memory.
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: certificate.GetNamespace(), Name: secretName, Labels: labels},
		Type:       corev1.SecretTypeTLS,
		Data: map[string][]byte{
			"ca.crt":                issuing.Bytes(),
			corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}),
		},
	}
	if err := m.Create(ctx, secret); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return m.Patch(ctx, secret, client.MergeFrom(&corev1.Secret{ObjectMeta: secret.ObjectMeta}))
}

func (m *certManagement) report(
	ctx context.Context, certificate *unstructured.Unstructured, state, message string,
) error {
	before := certificate.DeepCopy()
	certificate.Object["status"] = map[string]any{
		"state": state, "message": message, "observedGeneration": certificate.GetGeneration(),
	}
	return client.IgnoreNotFound(m.Status().Patch(ctx, certificate, client.MergeFrom(before)))
}
