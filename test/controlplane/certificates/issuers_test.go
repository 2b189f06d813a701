package certificates_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates/gardener"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

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

// requested is what cert-management reads of a Certificate.
type requested struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		CommonName         string                      `json:"commonName"`
		DNSNames           []string                    `json:"dnsNames"`
		EnsureRenewedAfter *metav1.Time                `json:"ensureRenewedAfter"`
		IssuerRef          corev1.LocalObjectReference `json:"issuerRef"`
		SecretName         string                      `json:"secretName"`
		SecretLabels       map[string]string           `json:"secretLabels"`
	} `json:"spec"`
}

func (m *certManagement) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	object, wanted := ofGardener("Certificate"), &requested{}
	if err := m.Get(ctx, request.NamespacedName, object); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, wanted); err != nil {
		return reconcile.Result{}, err
	}
	ca, err := m.authority(ctx, wanted)
	if err != nil {
		return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, m.report(ctx, object, "Error", err.Error())
	}
	secret := &corev1.Secret{}
	err = m.Get(ctx, client.ObjectKey{Namespace: request.Namespace, Name: wanted.Spec.SecretName}, secret)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	if !wanted.differs(secret) {
		return reconcile.Result{}, m.report(ctx, object, "Ready", "issued")
	}
	if err := m.report(ctx, object, "Pending", "requested"); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: time.Millisecond}, m.issue(ctx, wanted, ca)
}

func (m *certManagement) authority(ctx context.Context, wanted *requested) (*tls.Certificate, error) {
	issuer := ofGardener("Issuer")
	if err := m.Get(ctx, client.ObjectKey{Namespace: wanted.Metadata.Namespace, Name: wanted.Spec.IssuerRef.Name}, issuer); err != nil {
		return nil, err
	}
	key, _, _ := unstructured.NestedStringMap(issuer.Object, "spec", "ca", "privateKeySecretRef")
	secret := &corev1.Secret{}
	if err := m.Get(ctx, client.ObjectKey{Namespace: key["namespace"], Name: key["name"]}, secret); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	return &pair, err
}

// differs reports whether the issued certificate is not the requested one.
func (wanted *requested) differs(secret *corev1.Secret) bool {
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	after := wanted.Spec.EnsureRenewedAfter
	return err != nil || after != nil && pair.Leaf.NotBefore.Before(after.Time) ||
		pair.Leaf.Subject.CommonName != wanted.Spec.CommonName || !slices.Equal(pair.Leaf.DNSNames, wanted.Spec.DNSNames)
}

func (m *certManagement) issue(ctx context.Context, wanted *requested, ca *tls.Certificate) error {
	key := rig.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: wanted.Spec.CommonName},
		DNSNames: wanted.Spec.DNSNames, NotBefore: time.Now(), NotAfter: time.Now().Add(90 * 24 * time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: rig.BothUsages(),
	}, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		return err
	}
	text := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: wanted.Metadata.Namespace, Name: wanted.Spec.SecretName, Labels: wanted.Spec.SecretLabels,
		},
		Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			"ca.crt":                text("CERTIFICATE", ca.Certificate[0]),
			corev1.TLSCertKey:       text("CERTIFICATE", der),
			corev1.TLSPrivateKeyKey: text("EC PRIVATE KEY", rig.Must(x509.MarshalECPrivateKey(key))),
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
