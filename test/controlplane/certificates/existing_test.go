package certificates_test

import (
	"crypto/x509"
	"slices"
	"testing"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// existing is a CA of cert-manager with a Secret of a gateway that another program has made. They have
// the names of today's fleet, in a namespace that a gateway of Istio reads.
type existing struct {
	place

	t  *testing.T
	ca *x509.Certificate

	todaysCA, todaysGateway, anotherCA, leaf types.NamespacedName
}

func newExisting(t *testing.T) *existing {
	t.Helper()
	t.Parallel()
	e := &existing{place: startPlane(t), t: t}
	istio := e.namespace + "-istio-system"
	for key, name := range map[*types.NamespacedName]string{
		&e.todaysCA: "klm-watcher", &e.todaysGateway: "klm-istio-gateway", &e.anotherCA: "another", &e.leaf: "leaf",
	} {
		*key = types.NamespacedName{Namespace: istio, Name: name}
	}
	rig.NoError(t, e.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: istio}}))
	e.newIssuer(t, istio, "klm-watcher-root", certv1.IssuerConfig{SelfSigned: &certv1.SelfSignedIssuer{}})
	files := e.issuedCA(e.todaysCA)
	e.ca = certificatesOf(t, files["tls.crt"])[0]
	e.createSecret(e.todaysGateway, corev1.SecretTypeOpaque, map[string][]byte{
		"tls.crt": files["tls.crt"], "tls.key": files["tls.key"], "ca.crt": files["ca.crt"], "temp.ca.crt": files["ca.crt"],
	})
	return e
}

func (e *existing) issuedCA(key types.NamespacedName) map[string][]byte {
	e.t.Helper()
	return e.newCA(e.t, key.Namespace, key.Name, "klm-watcher-root")
}

func (e *existing) createSecret(key types.NamespacedName, kind corev1.SecretType, data map[string][]byte) {
	e.t.Helper()
	rig.NoError(e.t, e.Create(e.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Type: kind, Data: data,
	}))
}

func (e *existing) set(opts certificates.Options) *certificates.Certificates {
	e.t.Helper()
	return e.newSet(e.t, everybodyConfirms, opts)
}

func (e *existing) gateway() *corev1.Secret {
	e.t.Helper()
	return rig.Stored(e.t, e, e.todaysGateway, &corev1.Secret{})
}

// trusts reports whether the bundle of the gateway has a CA.
func (e *existing) trusts(ca *x509.Certificate) bool {
	return slices.ContainsFunc(certificatesOf(e.t, e.gateway().Data["ca.crt"]), ca.Equal)
}

// The Secret of a gateway is taken over with its CA, so that no peer has to trust another one. That
// CA is rotated as any other, and its copy has no key afterwards. Additional CAs come into the bundle
// and leave it with the option.
func TestExistingCAIsImported(t *testing.T) {
	e := newExisting(t)
	other := certificatesOf(t, e.issuedCA(e.anotherCA)["ca.crt"])[0]
	opts := certificates.Options{
		ImportCA: e.todaysCA, ListenerSecret: e.todaysGateway, AdditionalCAs: []types.NamespacedName{e.anotherCA},
	}
	set := e.set(opts)
	bootstrapped(t, set)
	server := certificatesOf(t, e.gateway().Data["tls.crt"])[0]
	rig.NoError(t, server.CheckSignatureFrom(e.ca)) // It is signed by the existing CA.
	rig.Same(t, "the server certificate is a CA", false, server.IsCA)
	rig.Same(t, "type", corev1.SecretTypeOpaque, e.gateway().Type)
	rig.Same(t, "CA of another program", e.ca.Raw, certificatesOf(t, e.gateway().Data["temp.ca.crt"])[0].Raw)
	runtime := ensured(t, set, certificates.Runtime{ID: "runtime-a", Domain: "a.example"}).Secret
	rig.NoError(t, certificatesOf(t, runtime["tls.crt"])[0].CheckSignatureFrom(e.ca))
	rig.Same(t, "the additional CA and the own one are trusted", []bool{true, true}, []bool{e.trusts(other), e.trusts(e.ca)})
	rig.Same(t, "bundle of the runtimes", e.gateway().Data["ca.crt"], runtime["ca.crt"])
	opts.AdditionalCAs = nil
	set = e.set(opts)
	bootstrapped(t, set)
	rig.Same(t, "the additional CA and the own one are trusted", []bool{false, true}, []bool{e.trusts(other), e.trusts(e.ca)})
	e.annotate(t, rotateCA, "now")
	reconciled(t, set, "the second CA signs everything", stable(2))
	e.assertOneKey(t)
	rig.Same(t, "the retired CA is trusted until it expires", true, e.trusts(e.ca))
	rig.Fails(t, "the server certificate is of the first CA", certificatesOf(t, e.gateway().Data["tls.crt"])[0].CheckSignatureFrom(e.ca))
	rig.Stored(t, e, e.todaysCA, &corev1.Secret{}) // The original stays.
	opts.AdditionalCAs = []types.NamespacedName{{Namespace: e.namespace, Name: "missing"}}
	_, err := e.set(opts).Reconcile(t.Context())
	rig.Fails(t, "a CA that is missing", err, e.namespace+"/missing")
}

// A Secret of a gateway is left alone if its CA is not imported. A change would cut agents off.
func TestForeignSecretIsLeftAlone(t *testing.T) {
	e := newExisting(t)
	e.issuedCA(e.anotherCA)
	other := rig.NewPKI(t).CA
	e.createSecret(e.leaf, corev1.SecretTypeTLS, testpki.Files(rig.Must(other.Client("a", testpki.Options{})), other))
	before := e.gateway().ResourceVersion
	for name, opts := range map[string]certificates.Options{
		"no import":  {ListenerSecret: e.todaysGateway},
		"another CA": {ListenerSecret: e.todaysGateway, ImportCA: e.anotherCA},
		"no Secret":  {ListenerSecret: e.todaysGateway, ImportCA: types.NamespacedName{Namespace: "default", Name: "none"}},
		"no CA":      {ListenerSecret: e.todaysGateway, ImportCA: e.leaf},
	} {
		_, err := e.set(opts).Reconcile(t.Context())
		rig.Fails(t, name, err)
		t.Logf("%s: %v", name, err)
	}
	rig.Same(t, "version of the Secret of the gateway", before, e.gateway().ResourceVersion)
	var made certv1.CertificateList
	rig.NoError(t, e.List(t.Context(), &made, client.InNamespace(e.namespace)))
	rig.Same(t, "Certificates that were made", 0, len(made.Items))
}
