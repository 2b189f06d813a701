package certificates_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/core"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

func certificatesOf(t *testing.T, text []byte) []*x509.Certificate {
	t.Helper()
	var all []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		certificate := rig.Must(x509.ParseCertificate(block.Bytes))
		all = append(all, certificate)
	}
	return all
}

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
	assertOwned(t, c, owner)
	rig.NoError(t, set.RemoveRuntime(t.Context(), certificates.Runtime{ID: long, Owner: owner}))
	for name, wrong := range map[string]certificates.Runtime{
		"the name of the listener": {ID: "listener", Domain: serverName}, "too long an ID": {ID: long + "x", Domain: "a.example"},
	} {
		_, err := set.EnsureRuntime(t.Context(), wrong)
		rig.Same(t, name+" is permanent", true, core.IsPermanent(err))
		rig.Same(t, name, "invalid_runtime", core.Reason(err))
	}
}

// assertOwned follows the owner references: from the owner to the certificate, and from there to
// its key.
func assertOwned(t *testing.T, c place, owner client.Object) {
	t.Helper()
	name := client.ObjectKey{Namespace: c.namespace, Name: "runtime-a-watcher-tls"}
	certificate, secret := rig.Stored(t, c, name, &certv1.Certificate{}), rig.Stored(t, c, name, &corev1.Secret{})
	if o := certificate.OwnerReferences; len(o) != 1 || o[0].UID != owner.GetUID() {
		t.Errorf("owners of the certificate: %v, want %s", o, owner.GetName())
	}
	if o := secret.OwnerReferences; len(o) != 1 || o[0].UID != certificate.UID ||
		o[0].APIVersion != certv1.SchemeGroupVersion.String() {
		t.Errorf("owners of the Secret: %v, want %s", o, certificate.Name)
	}
}

func (at place) newIssuer(t *testing.T, namespace, name string, config certv1.IssuerConfig) {
	t.Helper()
	rig.NoError(t, at.Create(t.Context(), &certv1.Issuer{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: certv1.IssuerSpec{IssuerConfig: config},
	}))
}

// newCA returns the Secret of a CA that is also a server certificate, as in today's fleet.
func (at place) newCA(t *testing.T, namespace, name, issuer string) map[string][]byte {
	t.Helper()
	rig.NoError(t, at.Create(t.Context(), &certv1.Certificate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-serving"},
		Spec: certv1.CertificateSpec{
			IsCA: true, CommonName: name, DNSNames: []string{serverName}, SecretName: name,
			PrivateKey: &certv1.CertificatePrivateKey{Algorithm: certv1.ECDSAKeyAlgorithm, RotationPolicy: certv1.RotationPolicyAlways},
			IssuerRef:  cmmeta.IssuerReference{Name: issuer},
		},
	}))
	secret := &corev1.Secret{}
	rig.Eventually(t, rig.Patience, "the CA is issued", func() bool {
		return at.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, secret) == nil && len(secret.Data["tls.crt"]) > 0
	})
	return secret.Data
}

// The CA may come from a PKI that is there already: then it is an intermediate one, and nothing
// else of that PKI is trusted. Keys are RSA as in today's fleet, and names and life are set.
func TestOwnPKI(t *testing.T) {
	t.Parallel()
	c := startPlane(t)
	const rootName = "corporate-root"
	c.newIssuer(t, c.namespace, "root-signer", certv1.IssuerConfig{SelfSigned: &certv1.SelfSignedIssuer{}})
	c.newCA(t, c.namespace, rootName, "root-signer")
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
		leaf := certificatesOf(t, after.Secret[name])[0]
		rig.Same(t, "life of "+name, 48*time.Hour, leaf.NotAfter.Sub(leaf.NotBefore))
	}
	for _, ca := range certificatesOf(t, after.Secret["ca.crt"]) {
		if ca.Subject.CommonName == rootName || ca.Issuer.CommonName != rootName {
			t.Errorf("the bundle has %s of %s, want only certificates that the root has signed for us", ca.Subject, ca.Issuer)
		}
	}
}
