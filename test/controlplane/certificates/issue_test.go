package certificates_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	apiutil "github.com/cert-manager/cert-manager/pkg/api/util"
	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

func certificatesOf(text []byte) []*x509.Certificate { return rig.Must(cert.ParseCertsPEM(text)) }

func everybodyConfirms(string, []core.RuntimeID) []core.RuntimeID { return nil }

// serviceNames are the names of the agent's Service.
var serviceNames = []string{
	"runtime-watcher.runtime-watcher", "runtime-watcher.runtime-watcher.svc",
	"runtime-watcher.runtime-watcher.svc.cluster.local",
}

// assertRuntime wants a client certificate for the domain and a serving certificate for the
// Service, with one usage each.
func assertRuntime(
	t *testing.T, data map[string][]byte, id core.RuntimeID, domain string, service []string, key x509.PublicKeyAlgorithm,
) {
	t.Helper()
	assertIssued(t, data, id, []string{domain}, x509.ExtKeyUsageClientAuth, key)
	serving := map[string][]byte{"ca.crt": data["ca.crt"], "tls.crt": data["webhook.crt"], "tls.key": data["webhook.key"]}
	assertIssued(t, serving, "", service, x509.ExtKeyUsageServerAuth, key)
}

// assertIssued checks a certificate as a peer does.
func assertIssued(
	t *testing.T, data map[string][]byte, id core.RuntimeID, names []string, usage x509.ExtKeyUsage, algorithm x509.PublicKeyAlgorithm,
) {
	t.Helper()
	pair := rig.Must(tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey]))
	if err := verified(data, pair.Leaf, names[0], usage); err != nil || len(pair.Leaf.ExtKeyUsage) != 1 {
		t.Errorf("%s: usages %v, want %v: %v", id, pair.Leaf.ExtKeyUsage, usage, err)
	}
	rig.Same(t, "Common Name", string(id), pair.Leaf.Subject.CommonName)
	rig.Same(t, "DNS names", names, pair.Leaf.DNSNames)
	ec, _ := pair.Leaf.PublicKey.(*ecdsa.PublicKey)
	if pair.Leaf.PublicKeyAlgorithm != algorithm || ec != nil && ec.Curve != elliptic.P256() || pair.Leaf.IsCA {
		t.Errorf("%s: key %T, CA %t: want %v (P-256), and no CA", id, pair.Leaf.PublicKey, pair.Leaf.IsCA, algorithm)
	}
}

func TestBootstrapAndRuntimes(t *testing.T) {
	t.Parallel()
	c := startPlane(t)
	set := c.newSet(t, everybodyConfirms, certificates.Options{})
	bootstrapped(t, set)
	published := rig.Stored(t, c, set.ListenerSecret(), &corev1.Secret{})
	assertIssued(t, published.Data, serverName, []string{serverName}, x509.ExtKeyUsageServerAuth, x509.ECDSA)
	before := published.Data
	rig.NoError(t, c.Delete(t.Context(), published))
	reconciled(t, set, "the listener's Secret is there again, as before", func(certificates.Status) bool {
		var after corev1.Secret
		return c.Get(t.Context(), set.ListenerSecret(), &after) == nil && cmp.Equal(after.Data, before)
	})
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "owner"}}
	rig.NoError(t, c.Create(t.Context(), owner))
	long := core.RuntimeID(strings.Repeat("x", 64))
	for _, id := range []core.RuntimeID{"runtime-a", "Odd_ID: 1/2", long} {
		domain := "a.skr.example"
		r := certificates.Runtime{ID: id, Domain: domain, Owner: owner}
		status := ensured(t, set, r)
		assertRuntime(t, status.Secret, id, domain, serviceNames, x509.ECDSA)
		r.Domain = "moved.skr.example"
		moved := ensured(t, set, r)
		assertRuntime(t, moved.Secret, id, r.Domain, serviceNames, x509.ECDSA)
		if bytes.Equal(moved.Secret["tls.crt"], status.Secret["tls.crt"]) {
			t.Errorf("%s: the certificate did not change with the domain", id)
		}
	}
	assertOwned(t, c, set, owner)
	rig.NoError(t, set.RemoveRuntime(t.Context(), certificates.Runtime{ID: long, Owner: owner}))
	_, err := set.EnsureRuntime(t.Context(), certificates.Runtime{ID: "listener", Domain: serverName})
	rig.Same(t, "the name of the listener is permanent", true, core.IsPermanent(err))
	rig.Same(t, "the name of the listener", "invalid_runtime", core.ReasonOf(err))
}

// assertOwned follows from the owner to the certificate, and from there to its key.
func assertOwned(t *testing.T, c place, set *certificates.Certificates, owner client.Object) {
	t.Helper()
	name := client.ObjectKey{Namespace: c.namespace, Name: "runtime-a-watcher-tls"}
	certificate := rig.Stored(t, c, name, &certv1.Certificate{})
	if o := certificate.OwnerReferences; len(o) != 1 || o[0].UID != owner.GetUID() {
		t.Errorf("owners of the certificate: %v, want %s", o, owner.GetName())
	}
	rig.NoError(t, c.Delete(t.Context(), certificate))
	reconciled(t, set, "the key ends after its certificate", func(certificates.Status) bool {
		return apierrors.IsNotFound(c.Get(t.Context(), name, &corev1.Secret{}))
	})
	rig.Stored(t, c, client.ObjectKey{Namespace: c.namespace, Name: "runtime-a-webhook-tls"}, &corev1.Secret{})
}

func (at place) newIssuer(t *testing.T, namespace, name string, config certv1.IssuerConfig) {
	t.Helper()
	rig.NoError(t, at.Create(t.Context(), &certv1.Issuer{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: certv1.IssuerSpec{IssuerConfig: config},
	}))
}

// newCA returns the Secret of a CA that is also a server certificate, as in today's fleet.
func (at place) newCA(t *testing.T, key types.NamespacedName, issuer string) map[string][]byte {
	t.Helper()
	rig.NoError(t, at.Create(t.Context(), &certv1.Certificate{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name + "-serving"},
		Spec: certv1.CertificateSpec{
			IsCA: true, CommonName: key.Name, DNSNames: []string{serverName}, SecretName: key.Name,
			PrivateKey: &certv1.CertificatePrivateKey{Algorithm: certv1.ECDSAKeyAlgorithm, RotationPolicy: certv1.RotationPolicyAlways},
			IssuerRef:  cmmeta.IssuerReference{Name: issuer},
		},
	}))
	// A busy cert-manager may issue a second time, before its cache has the first Secret. The certificate is ready after
	// the last one.
	issued := &certv1.Certificate{}
	rig.Eventually(t, rig.Patience, "the CA is issued", func() bool {
		err := at.Get(t.Context(), types.NamespacedName{Namespace: key.Namespace, Name: key.Name + "-serving"}, issued)
		return err == nil && hasCondition(issued, certv1.CertificateConditionReady) &&
			!hasCondition(issued, certv1.CertificateConditionIssuing)
	})
	return rig.Stored(t, at, key, &corev1.Secret{}).Data
}

func hasCondition(certificate *certv1.Certificate, kind certv1.CertificateConditionType) bool {
	return apiutil.CertificateHasCondition(certificate, certv1.CertificateCondition{Type: kind, Status: cmmeta.ConditionTrue})
}

// The CA may come from a PKI that is there already: then it is an intermediate one, and nothing
// else of that PKI is trusted. Keys are RSA as in today's fleet, and names and life are set.
func TestOwnPKI(t *testing.T) {
	t.Parallel()
	c := startPlane(t)
	const rootName = "corporate-root"
	c.newIssuer(t, c.namespace, "root-signer", certv1.IssuerConfig{SelfSigned: &certv1.SelfSignedIssuer{}})
	c.newCA(t, types.NamespacedName{Namespace: c.namespace, Name: rootName}, "root-signer")
	c.newIssuer(t, c.namespace, "corporate", certv1.IssuerConfig{CA: &certv1.CAIssuer{SecretName: rootName}})
	set := c.newSet(t, everybodyConfirms, certificates.Options{
		Propagation: time.Millisecond, CAIssuer: cmmeta.IssuerReference{
			Name: "corporate", Kind: certv1.IssuerKind,
			Group: certv1.SchemeGroupVersion.Group,
		},
		KeyAlgorithm: certv1.RSAKeyAlgorithm, Duration: 48 * time.Hour, RenewBefore: 12 * time.Hour,
		Service: "agent", RuntimeNamespace: "kyma-system",
	})
	r := certificates.Runtime{ID: "runtime-a", Domain: "a.skr.example"}
	bootstrapped(t, set)
	before := ensured(t, set, r)
	c.annotate(t, rotateCA, "now")
	reconciled(t, set, "the CA is rotated", stable(2))
	after := ensured(t, set, r)
	service := []string{"agent.kyma-system", "agent.kyma-system.svc", "agent.kyma-system.svc.cluster.local"}
	assertRuntime(t, after.Secret, r.ID, r.Domain, service, x509.RSA)
	if bytes.Equal(after.Secret["tls.crt"], before.Secret["tls.crt"]) {
		t.Error("the rotation has not re-issued the certificate")
	}
	for _, name := range []string{"tls.crt", "webhook.crt"} {
		leaf := certificatesOf(after.Secret[name])[0]
		rig.Same(t, "life of "+name, 48*time.Hour, leaf.NotAfter.Sub(leaf.NotBefore))
	}
	for _, ca := range certificatesOf(after.Secret["ca.crt"]) {
		if ca.Subject.CommonName == rootName || ca.Issuer.CommonName != rootName {
			t.Errorf("the bundle has %s of %s, want only certificates that the root has signed for us", ca.Subject, ca.Issuer)
		}
	}
}

// existing is a CA of cert-manager with a Secret of a gateway that another program has made. They have
// the names of today's fleet, in a namespace that a gateway of Istio reads.
type existing struct {
	place

	t  *testing.T
	ca *x509.Certificate

	todaysCA, todaysGateway, anotherCA, leaf types.NamespacedName
}

const rootIssuer = "klm-watcher-root"

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
	e.newIssuer(t, istio, rootIssuer, certv1.IssuerConfig{SelfSigned: &certv1.SelfSignedIssuer{}})
	files := e.newCA(t, e.todaysCA, rootIssuer)
	e.ca = certificatesOf(files["tls.crt"])[0]
	e.createSecret(e.todaysGateway, corev1.SecretTypeOpaque, map[string][]byte{
		"tls.crt": files["tls.crt"], "tls.key": files["tls.key"], "ca.crt": files["ca.crt"], "temp.ca.crt": files["ca.crt"],
	})
	return e
}

func (e *existing) createSecret(key types.NamespacedName, kind corev1.SecretType, data map[string][]byte) {
	e.t.Helper()
	rig.NoError(e.t, e.Create(e.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Type: kind, Data: data,
	}))
}

func (e *existing) gateway() *corev1.Secret {
	e.t.Helper()
	return rig.Stored(e.t, e, e.todaysGateway, &corev1.Secret{})
}

// trusts reports whether the bundle of the gateway has a CA.
func (e *existing) trusts(ca *x509.Certificate) bool {
	return slices.ContainsFunc(certificatesOf(e.gateway().Data["ca.crt"]), ca.Equal)
}

// The Secret of a gateway is taken over with its CA, so that no peer has to trust another one. That
// CA is rotated as any other, and its copy has no key afterwards. Additional CAs come into the bundle
// and leave it with the option.
func TestExistingCAIsImported(t *testing.T) {
	e := newExisting(t)
	other := certificatesOf(e.newCA(t, e.anotherCA, rootIssuer)["ca.crt"])[0]
	opts := certificates.Options{
		ImportCA: e.todaysCA, ListenerSecret: e.todaysGateway, AdditionalCAs: []types.NamespacedName{e.anotherCA},
	}
	set := e.newSet(t, everybodyConfirms, opts)
	bootstrapped(t, set)
	server := certificatesOf(e.gateway().Data["tls.crt"])[0]
	rig.NoError(t, server.CheckSignatureFrom(e.ca)) // It is signed by the existing CA.
	rig.Same(t, "the server certificate is a CA", false, server.IsCA)
	rig.Same(t, "type", corev1.SecretTypeOpaque, e.gateway().Type)
	rig.Same(t, "CA of another program", e.ca.Raw, certificatesOf(e.gateway().Data["temp.ca.crt"])[0].Raw)
	runtime := ensured(t, set, certificates.Runtime{ID: "runtime-a", Domain: "a.example"}).Secret
	rig.NoError(t, certificatesOf(runtime["tls.crt"])[0].CheckSignatureFrom(e.ca))
	rig.Same(t, "the additional CA and the own one are trusted", []bool{true, true}, []bool{e.trusts(other), e.trusts(e.ca)})
	rig.Same(t, "bundle of the runtimes", e.gateway().Data["ca.crt"], runtime["ca.crt"])
	opts.AdditionalCAs = nil
	set = e.newSet(t, everybodyConfirms, opts)
	bootstrapped(t, set)
	rig.Same(t, "the additional CA and the own one are trusted", []bool{false, true}, []bool{e.trusts(other), e.trusts(e.ca)})
	e.annotate(t, rotateCA, "now")
	reconciled(t, set, "the second CA signs everything", stable(2))
	e.assertOneKey(t)
	rig.Same(t, "the retired CA is trusted until it expires", true, e.trusts(e.ca))
	rig.Fails(t, "the server certificate is of the first CA", certificatesOf(e.gateway().Data["tls.crt"])[0].CheckSignatureFrom(e.ca))
	rig.Stored(t, e, e.todaysCA, &corev1.Secret{}) // The original stays.
	opts.AdditionalCAs = []types.NamespacedName{{Namespace: e.namespace, Name: "missing"}}
	_, err := e.newSet(t, everybodyConfirms, opts).Reconcile(t.Context())
	rig.Fails(t, "a CA that is missing", err, e.namespace+"/missing")
}

// A Secret of a gateway is left alone if its CA is not imported. A change would cut agents off.
func TestForeignSecretIsLeftAlone(t *testing.T) {
	e := newExisting(t)
	e.newCA(t, e.anotherCA, rootIssuer)
	other := rig.NewPKI(t).CA
	e.createSecret(e.leaf, corev1.SecretTypeTLS, testpki.Files(rig.Must(other.Client("a", testpki.Options{})), other))
	before := e.gateway().ResourceVersion
	for name, opts := range map[string]certificates.Options{
		"no import":  {ListenerSecret: e.todaysGateway},
		"another CA": {ListenerSecret: e.todaysGateway, ImportCA: e.anotherCA},
		"no Secret":  {ListenerSecret: e.todaysGateway, ImportCA: types.NamespacedName{Namespace: "default", Name: "none"}},
		"no CA":      {ListenerSecret: e.todaysGateway, ImportCA: e.leaf},
	} {
		_, err := e.newSet(t, everybodyConfirms, opts).Reconcile(t.Context())
		rig.Fails(t, name, err)
		t.Logf("%s: %v", name, err)
	}
	rig.Same(t, "version of the Secret of the gateway", before, e.gateway().ResourceVersion)
	var made certv1.CertificateList
	rig.NoError(t, e.List(t.Context(), &made, client.InNamespace(e.namespace)))
	rig.Same(t, "Certificates that were made", 0, len(made.Items))
}
