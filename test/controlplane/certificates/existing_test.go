package certificates_test

import (
	"bytes"
	"crypto/x509"
	"slices"
	"strings"
	"testing"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
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
	e.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: istio}})
	e.create(&certv1.Issuer{
		ObjectMeta: metav1.ObjectMeta{Namespace: istio, Name: "klm-watcher-root"},
		Spec:       certv1.IssuerSpec{IssuerConfig: certv1.IssuerConfig{SelfSigned: &certv1.SelfSignedIssuer{}}},
	})
	files := e.newCA(e.todaysCA)
	e.ca = certificatesOf(t, files["tls.crt"])[0]
	e.createSecret(e.todaysGateway, corev1.SecretTypeOpaque, map[string][]byte{
		"tls.crt": files["tls.crt"], "tls.key": files["tls.key"], "ca.crt": files["ca.crt"], "temp.ca.crt": files["ca.crt"],
	})
	return e
}

// newCA returns the Secret of a CA that is also a server certificate.
func (e *existing) newCA(key types.NamespacedName) map[string][]byte {
	e.t.Helper()
	e.create(&certv1.Certificate{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name + "-serving"},
		Spec: certv1.CertificateSpec{
			IsCA: true, CommonName: key.Name + "-selfsigned-ca", DNSNames: []string{serverName}, SecretName: key.Name,
			PrivateKey: &certv1.CertificatePrivateKey{Algorithm: certv1.ECDSAKeyAlgorithm, RotationPolicy: certv1.RotationPolicyAlways},
			IssuerRef:  cmmeta.IssuerReference{Name: "klm-watcher-root", Kind: "Issuer", Group: "cert-manager.io"},
		},
	})
	secret := &corev1.Secret{}
	rig.Eventually(e.t, patience, "the CA is issued", func() bool {
		return e.Get(e.t.Context(), key, secret) == nil && len(secret.Data["tls.crt"]) > 0
	})
	return secret.Data
}

func (e *existing) must(err error) {
	e.t.Helper()
	rig.NoError(e.t, err)
}

func (e *existing) create(object client.Object) {
	e.t.Helper()
	e.must(e.Create(e.t.Context(), object))
}

func (e *existing) createSecret(key types.NamespacedName, kind corev1.SecretType, data map[string][]byte) {
	e.t.Helper()
	e.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Type: kind, Data: data,
	})
}

func (e *existing) set(opts certificates.Options) *certificates.Certificates {
	e.t.Helper()
	return e.newSet(e.t, everybodyConfirms, opts)
}

func (e *existing) gateway() *corev1.Secret {
	e.t.Helper()
	secret := &corev1.Secret{}
	e.must(e.Get(e.t.Context(), e.todaysGateway, secret))
	return secret
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
	other := certificatesOf(t, e.newCA(e.anotherCA)["ca.crt"])[0]
	opts := certificates.Options{
		ImportCA: e.todaysCA, ListenerSecret: e.todaysGateway, AdditionalCAs: []types.NamespacedName{e.anotherCA},
	}
	set := e.set(opts)
	bootstrapped(t, set)
	server := certificatesOf(t, e.gateway().Data["tls.crt"])[0]
	if err := server.CheckSignatureFrom(e.ca); err != nil || server.IsCA {
		t.Errorf("the server certificate of %q, CA %t, is not signed by the existing CA: %v", server.Subject, server.IsCA, err)
	}
	if kind, other := e.gateway().Type, e.gateway().Data["temp.ca.crt"]; kind != corev1.SecretTypeOpaque || other == nil {
		t.Errorf("type %s with %d bytes of another program, want both as before", kind, len(other))
	}
	runtime := ensured(t, set, certificates.Runtime{ID: "runtime-a", Domain: "a.example"}).Secret
	if err := certificatesOf(t, runtime["tls.crt"])[0].CheckSignatureFrom(e.ca); err != nil {
		t.Errorf("the client certificate is not signed by the existing CA: %v", err)
	}
	if !e.trusts(other) || !e.trusts(e.ca) || !bytes.Equal(runtime["ca.crt"], e.gateway().Data["ca.crt"]) {
		t.Error("a CA is not in the bundle, or runtimes have another bundle than the gateway")
	}
	opts.AdditionalCAs = nil
	set = e.set(opts)
	bootstrapped(t, set)
	if e.trusts(other) || !e.trusts(e.ca) {
		t.Error("want the additional CA to leave the bundle, and the CA that signs to stay")
	}
	e.annotate(t, rotateCA, "now")
	reconciled(t, set, "the second CA signs everything", stable(2))
	e.assertOneKey(t)
	if !e.trusts(e.ca) {
		t.Error("the retired CA is not in the bundle, want it until it expires")
	}
	if err := certificatesOf(t, e.gateway().Data["tls.crt"])[0].CheckSignatureFrom(e.ca); err == nil {
		t.Error("the server certificate is still of the first CA")
	}
	e.must(e.Get(t.Context(), e.todaysCA, &corev1.Secret{})) // The original stays.
	opts.AdditionalCAs = []types.NamespacedName{{Namespace: e.namespace, Name: "missing"}}
	if _, err := e.set(opts).Reconcile(t.Context()); err == nil || !strings.Contains(err.Error(), e.namespace+"/missing") {
		t.Errorf("error %v, want the name of the Secret", err)
	}
}

// A Secret of a gateway is left alone if its CA is not imported. A change would cut agents off.
func TestForeignSecretIsLeftAlone(t *testing.T) {
	e := newExisting(t)
	e.newCA(e.anotherCA)
	before := e.gateway().ResourceVersion
	for name, opts := range map[string]certificates.Options{
		"no import":  {ListenerSecret: e.todaysGateway},
		"another CA": {ListenerSecret: e.todaysGateway, ImportCA: e.anotherCA},
		"no Secret":  {ListenerSecret: e.todaysGateway, ImportCA: types.NamespacedName{Namespace: "default", Name: "none"}},
		"no CA":      {ListenerSecret: e.todaysGateway, ImportCA: e.newLeaf()},
	} {
		if _, err := e.set(opts).Reconcile(t.Context()); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	if after := e.gateway().ResourceVersion; after != before {
		t.Error("the Secret of the gateway was changed")
	}
	var made certv1.CertificateList
	e.must(e.List(t.Context(), &made, client.InNamespace(e.namespace)))
	if len(made.Items) > 0 {
		t.Errorf("%d Certificates were made, the first is %s", len(made.Items), made.Items[0].Name)
	}
}

// newLeaf makes a Secret with a certificate that is no CA.
func (e *existing) newLeaf() types.NamespacedName {
	e.t.Helper()
	ca, err := testpki.NewCA("other", testpki.Options{})
	e.must(err)
	leaf, err := ca.Client("a", testpki.Options{})
	e.must(err)
	e.createSecret(e.leaf, corev1.SecretTypeTLS, testpki.Files(leaf, ca))
	return e.leaf
}
