package nats_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"testing"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/nats-io/nats.go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
)

const (
	natsName  = "nats.kcp.example.com"
	kcpSystem = "kcp-system"
)

// issuer is a control plane with cert-manager and the certificates of docs/platforms/nats.md.
type issuer struct {
	t      *testing.T
	client client.Client
	set    *certificates.Certificates
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), certv1.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}
	plane := apiserver.StartT(t, apiserver.Options{Scheme: known})
	certmanager.StartT(t, plane.Kubeconfig, certmanager.Options{})
	i := &issuer{t: t, client: client.WithFieldValidation(plane.Client, metav1.FieldValidationStrict)}
	i.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: kcpSystem}})
	none := certificates.Confirmations(func(string, []core.RuntimeID) []core.RuntimeID { return nil })
	i.set = lab.Must(certificates.New(i.client, types.NamespacedName{Namespace: kcpSystem, Name: "watcher"},
		[]string{natsName, documentedUser}, none, certificates.Options{}))
	eventually(t, "the certificates are ready", func() bool { return lab.Must(i.set.Reconcile(t.Context())).Ready })
	return i
}

func (i *issuer) create(object client.Object) {
	i.t.Helper()
	if err := i.client.Create(i.t.Context(), object); err != nil {
		i.t.Fatal(err)
	}
}

// secret returns the content of a Secret when it is issued.
func (i *issuer) secret(name string) map[string][]byte {
	i.t.Helper()
	var secret corev1.Secret
	eventually(i.t, name+" is issued", func() bool {
		err := i.client.Get(i.t.Context(), types.NamespacedName{Namespace: kcpSystem, Name: name}, &secret)
		return err == nil && len(secret.Data["tls.crt"]) > 0
	})
	return secret.Data
}

// connectOperator connects with the present certificate of keys, also after a rotation.
func connectOperator(servers string, keys natsjetstream.KeyMaterial, opts ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(servers, append(natsjetstream.OperatorConnectOptions("my-operator", keys), opts...)...)
}

// keysOf returns the certificate of one Secret and the CAs of another.
func keysOf(leaf, bundle map[string][]byte) natsjetstream.KeyMaterial {
	certificate, roots := lab.Must(tls.X509KeyPair(leaf["tls.crt"], leaf["tls.key"])), x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle["ca.crt"])
	return func() (*tls.Certificate, *x509.CertPool) { return &certificate, roots }
}

// named expects the documented name, as the server is at an address here.
func named(o *nats.Options) error {
	o.TLSConfig.ServerName = natsName
	return nil
}

// TestDocumentedCertificates runs server, operator and runtime with the certificates of docs/platforms/nats.md,
// which cert-manager issues.
func TestDocumentedCertificates(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server and cert-manager, which -short leaves out")
	}
	i := newIssuer(t)
	var documentedCertificate unstructured.Unstructured
	if err := yaml.UnmarshalStrict([]byte(block(t, "yaml", "apiVersion: cert-manager.io")), &documentedCertificate.Object); err != nil {
		t.Fatal(err)
	}
	i.create(&documentedCertificate)
	bundle, leaf := i.secret("watcher-listener"), i.secret("my-operator-nats-tls")
	n := documented(t, "", bundle)
	op := newOperator()
	operator := lab.Must(connectOperator("tls://"+n.Addr, keysOf(leaf, bundle), named))
	t.Cleanup(operator.Close)
	consume(t, operator, op, natsjetstream.Options{})
	var issued certificates.RuntimeStatus
	eventually(t, "the runtime has a certificate", func() bool {
		issued = lab.Must(i.set.EnsureRuntime(t.Context(), certificates.Runtime{ID: attacker, Domain: lab.RuntimeDomain(attacker)}))
		return issued.Ready
	})
	opts := append(natsjetstream.ConnectOptions(attacker, keysOf(issued.Secret, issued.Secret)), named)
	conn := lab.Must(nats.Connect("tls://"+n.Addr, opts...))
	t.Cleanup(conn.Close)
	arrives(t, lab.Must(natsjetstream.NewForwarder(conn, attacker, natsjetstream.ForwarderOptions{AnswerWait: patience})), op)
	if _, err := i.set.EnsureRuntime(t.Context(), certificates.Runtime{ID: victim, Domain: documentedUser}); err == nil {
		t.Error("a runtime gets a certificate with the name of the operator")
	}
}
