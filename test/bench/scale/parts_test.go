package scale

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
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
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// dialToFill is longer than a connection to this machine takes.
const dialToFill = 500 * time.Millisecond

// blackHole returns an address of this machine that answers no SYN, as that of a cluster that is
// gone: the queue of its listener is full.
func blackHole(t *testing.T) string {
	t.Helper()
	fd := lab.Must(syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0))
	t.Cleanup(func() { _ = syscall.Close(fd) })
	lab.NoError(t, errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)))
	bound := lab.Must(syscall.Getsockname(fd))
	address := fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port)
	for full := false; !full; {
		connected, err := (&net.Dialer{Timeout: dialToFill}).DialContext(t.Context(), "tcp", address)
		if full = err != nil; !full {
			t.Cleanup(func() { _ = connected.Close() })
		}
	}
	return address
}

// issuer issues 20,000 certificates in a minute, which takes cert-manager half an hour. All are of
// one CA.
type issuer struct {
	client.Client

	ca *testpki.CA
}

func startIssuer(t *testing.T, config *rest.Config) {
	t.Helper()
	mgr := lab.NewManager(t, config, newScheme())
	i := &issuer{Client: mgr.GetClient(), ca: lab.NewPKI(t).CA}
	lab.NoError(t, ctrl.NewControllerManagedBy(mgr).For(&certv1.Certificate{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: 8}).Complete(i))
	lab.Run(t, "issuer", mgr.Start)
}

// Reconcile stores the Secret of a Certificate. Without controllers that sign, no CA needs its key.
func (i *issuer) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	certificate := &certv1.Certificate{}
	if err := i.Get(ctx, request.NamespacedName, certificate); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	spec := &certificate.Spec
	opts := testpki.Options{DNSNames: spec.DNSNames, NotAfter: time.Now().Add(spec.Duration.Duration), Usages: []x509.ExtKeyUsage{}}
	for usage, extended := range map[certv1.KeyUsage]x509.ExtKeyUsage{
		certv1.UsageClientAuth: x509.ExtKeyUsageClientAuth, certv1.UsageServerAuth: x509.ExtKeyUsageServerAuth,
	} {
		if slices.Contains(spec.Usages, usage) {
			opts.Usages = append(opts.Usages, extended)
		}
	}
	leaf, err := i.ca.Client(spec.CommonName, opts)
	if err != nil {
		return reconcile.Result{}, err
	}
	files := testpki.Files(leaf, i.ca)
	if spec.IsCA {
		files[corev1.TLSCertKey] = i.ca.PEM
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: spec.SecretName, Labels: spec.SecretTemplate.Labels},
		Type:       corev1.SecretTypeTLS, Data: files,
	}
	if err := i.Create(ctx, secret); !apierrors.IsAlreadyExists(err) {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}
