package scale

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"sync"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// issuer issues 20,000 certificates in a minute, which takes cert-manager half an hour.
type issuer struct {
	client.Client

	mu  sync.Mutex
	cas map[string]authority
}

type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

func startIssuer(t *testing.T, config *rest.Config) {
	t.Helper()
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: newScheme(), Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{Client: mgr.GetClient(), cas: map[string]authority{}}
	if err := ctrl.NewControllerManagedBy(mgr).For(&certv1.Certificate{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: 8}).Complete(i); err != nil {
		t.Fatal(err)
	}
	lab.Run(t, "issuer", mgr.Start)
}

func (i *issuer) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	certificate := &certv1.Certificate{}
	if err := i.Get(ctx, request.NamespacedName, certificate); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return reconcile.Result{}, err
	}
	template := templateOf(certificate)
	signer := authority{template, key}
	if !certificate.Spec.IsCA {
		if signer, err = i.authority(ctx, certificate.Spec.IssuerRef.Name); err != nil {
			return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, nil //nolint:nilerr // It is on its way.
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer.certificate, key.Public(), signer.key)
	if err != nil {
		return reconcile.Result{}, err
	}
	if certificate.Spec.IsCA {
		if err := i.keep(certificate.Spec.SecretName, der, key); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{}, i.store(ctx, certificate, der, key)
}

func templateOf(certificate *certv1.Certificate) *x509.Certificate {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: certificate.Spec.CommonName},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(certificate.Spec.Duration.Duration),
		DNSNames: certificate.Spec.DNSNames, IsCA: certificate.Spec.IsCA, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
	for _, usage := range certificate.Spec.Usages {
		switch usage {
		case certv1.UsageClientAuth:
			template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
		case certv1.UsageServerAuth:
			template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		case certv1.UsageCertSign:
			template.KeyUsage |= x509.KeyUsageCertSign
		default:
		}
	}
	return template
}

// authority returns the CA of an Issuer.
func (i *issuer) authority(ctx context.Context, name string) (authority, error) {
	found := &certv1.Issuer{}
	if err := i.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, found); err != nil {
		return authority{}, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	ca, ok := i.cas[found.Spec.CA.SecretName]
	if !ok {
		return authority{}, fmt.Errorf("no CA %s yet", found.Spec.CA.SecretName)
	}
	return ca, nil
}

func (i *issuer) keep(name string, der []byte, key crypto.Signer) error {
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cas[name] = authority{certificate, key}
	return nil
}

func (i *issuer) store(ctx context.Context, certificate *certv1.Certificate, der []byte, key crypto.Signer) error {
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	err = i.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: certificate.Spec.SecretName, Labels: certificate.Spec.SecretTemplate.Labels,
		},
		Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
			"ca.crt":                {},
		},
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
