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
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates/gardener"
	"github.com/runtime-watcher/runtime-watcher/core"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

var three = []core.RuntimeID{"runtime-a", "runtime-b", "runtime-c"}

// Two rotations, the second while the first is under way: at no moment does a peer mistrust another.
func TestRotation(t *testing.T) {
	t.Parallel()
	t.Run("cert-manager", func(t *testing.T) {
		t.Parallel()
		rotation(t, startPlane(t), readOnly{startShared(t).Client})
	})
	t.Run("cert-management of Gardener", func(t *testing.T) {
		t.Parallel()
		rotation(t, startGardener(t), gardener.NewClient(readOnly{startShared(t).Client}, ""))
	})
}

type readOnly struct{ client.Client }

func (readOnly) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	return errKilled
}

func rotation(t *testing.T, at place, only client.Client) {
	t.Helper()
	p := newPeers(t, at, three...)
	set := p.set()
	before := p.published(set)
	p.annotate(t, rotateCA, "first")
	p.until(set, "the first rotation has its CA", func(s certificates.Status) bool { return s.Generation == 2 })
	p.annotate(t, rotateCA, "second")
	p.until(set, "both rotations are over", stable(3))
	// What is issued costs no write.
	unchanged := place{only, at.namespace}.newSet(t, p.confirmations, certificates.Options{})
	_, err := unchanged.EnsureRuntime(t.Context(), certificates.Runtime{ID: three[0], Domain: domainOf(three[0])})
	rig.NoError(t, err)
	after := p.published(set)
	if bytes.Equal(before[corev1.TLSCertKey], after[corev1.TLSCertKey]) {
		t.Error("the server certificate is the same")
	}
	rig.Same(t, "CAs in the bundle until they expire", 3, len(certificatesOf(after["ca.crt"])))
	p.assertOneKey(t)
	for id, secret := range p.loaded {
		for _, name := range []string{corev1.TLSCertKey, "webhook.crt"} {
			// A certificate with which a runtime could connect is of that runtime. With cert-management of Gardener, this is
			// also the serving certificate.
			leaf := certificatesOf(secret[name])[0]
			if slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
				rig.Same(t, "Common Name of a certificate for clients", string(id), leaf.Subject.CommonName)
			}
		}
	}
}

// assertOneKey requires that the keys of retired CAs are gone.
func (at place) assertOneKey(t *testing.T) {
	t.Helper()
	rig.Eventually(t, rig.Patience, "only the CA that signs has a key", func() bool {
		var secrets corev1.SecretList
		rig.NoError(t, at.List(t.Context(), &secrets, client.InNamespace(at.namespace),
			client.MatchingLabels{"operator.kyma-project.io/certificate-role": "ca"}))
		return len(secrets.Items) == 1
	})
}

// The Secret of the CA is deleted, and cert-manager issues another CA in its place, which no peer
// trusts. It is replaced in the order of a rotation, so that no
// peer mistrusts another.
func TestLostCA(t *testing.T) {
	t.Parallel()
	p := newPeers(t, startPlane(t), three...)
	set := p.set()
	lost := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: setName + "-ca-1"}}
	rig.NoError(t, p.Delete(t.Context(), lost))
	rig.Eventually(t, rig.Patience, "cert-manager has issued another CA", func() bool {
		return p.Get(t.Context(), client.ObjectKeyFromObject(lost), lost) == nil &&
			len(lost.Data[corev1.TLSCertKey]) > 0
	})
	// Certificates that are issued meanwhile are of the wrong CA.
	for _, name := range []string{setName + "-server", "runtime-a-watcher-tls", "runtime-b-webhook-tls"} {
		p.issueAgain(t, name)
	}
	p.until(set, "another CA signs everything", stable(2))
	p.assertOneKey(t)
}

// issueAgain makes cert-manager issue a certificate, as it does before the certificate expires.
func (at place) issueAgain(t *testing.T, name string) {
	t.Helper()
	key := client.ObjectKey{Namespace: at.namespace, Name: name}
	before := rig.Stored(t, at, key, &corev1.Secret{})
	certificate := &certv1.Certificate{ObjectMeta: metav1.ObjectMeta{Namespace: at.namespace, Name: name}}
	rig.Change(t, at, certificate, func(certificate *certv1.Certificate) error {
		certificate.Status.Conditions = append(certificate.Status.Conditions, certv1.CertificateCondition{
			Type: certv1.CertificateConditionIssuing, Status: cmmeta.ConditionTrue, Reason: "Test", Message: "It is renewed",
		})
		return at.Status().Update(t.Context(), certificate)
	})
	rig.Eventually(t, rig.Patience, name+" is issued", func() bool {
		after := rig.Stored(t, at, key, &corev1.Secret{})
		return !bytes.Equal(before.Data[corev1.TLSCertKey], after.Data[corev1.TLSCertKey])
	})
}

// A runtime that never confirms is named, and delays the switch until an annotation ends the wait.
func TestRuntimeThatNeverConfirms(t *testing.T) {
	t.Parallel()
	p := newPeers(t, startPlane(t), three...)
	recorder := events.NewFakeRecorder(1000)
	set := p.newSet(t, p.confirmations, certificates.Options{Recorder: recorder})
	p.frozen = three[1]
	server := func() []byte { return p.published(set)[corev1.TLSCertKey] }
	first := server()
	p.annotate(t, rotateCA, "now")
	status := p.until(set, "only runtime-b is waited for", func(s certificates.Status) bool {
		return s.Confirming && slices.Equal(s.Waiting, three[1:2])
	})
	t.Log(status.Message)
	issuer := rig.Stored(t, p, client.ObjectKey{Namespace: p.namespace, Name: clientsIssuer}, &certv1.Issuer{})
	rig.Same(t, "report of the Issuer", status.Message, issuer.Annotations["operator.kyma-project.io/rotation"])
	p.assertEvent(set, recorder, "RotationWaits", "trusts it; runtimes without it: 1 [runtime-b]")
	p.staysUntilConfirmed(set, three[1:2])
	if !bytes.Equal(first, server()) {
		t.Error("the server has another certificate before runtime-b has confirmed the new CA")
	}
	p.cutOff = three[1]
	p.annotate(t, "operator.kyma-project.io/switch-anyway", "2")
	p.until(set, "the rotation goes on without it", stable(2))
	if bytes.Equal(first, server()) {
		t.Error("the server has its first certificate after the switch")
	}
	// Else the check of the peers cannot fail.
	rig.Fails(t, "runtime-b without its bundle", p.trusts(p.loaded[p.frozen], p.servers[0], x509.ExtKeyUsageServerAuth))
	// It is a peer again when it has the new bundle.
	p.frozen = ""
	p.until(set, "runtime-b has its Secret", stable(2))
	p.cutOff = ""
	p.check()
}

// staysUntilConfirmed reconciles for longer than the other runtimes and all waits take. Only the
// runtimes that are waited for delay the switch.
func (p *peers) staysUntilConfirmed(set *certificates.Certificates, waiting []core.RuntimeID) {
	p.t.Helper()
	tick := time.NewTicker(propagation / 10)
	defer tick.Stop()
	for range 15 {
		<-tick.C
		status, err := p.step(set)
		if done(p.t, err) && (!status.Confirming || !slices.Equal(status.Waiting, waiting)) {
			p.t.Fatalf("got %+v, want it to wait for %v", status, waiting)
		}
	}
}

// assertEvent reconciles until there is such an Event.
func (p *peers) assertEvent(set *certificates.Certificates, recorder *events.FakeRecorder, parts ...string) {
	p.t.Helper()
	p.until(set, fmt.Sprintf("an Event says %q", parts), func(certificates.Status) bool {
		select {
		case event := <-recorder.Events:
			return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(event, part) })
		default:
			return false
		}
	})
}

var errKilled = errors.New("killed")

// mortal returns a client that fails after some writes, as if its process were killed.
func mortal(c client.WithWatch, writes int) client.Client {
	var left atomic.Int64
	left.Store(int64(writes))
	write := func(do func() error) error {
		if left.Add(-1) < 0 {
			return errKilled
		}
		return do()
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return write(func() error { return c.Apply(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return write(func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourceUpdate: func(
			ctx context.Context, c client.Client, kind string, o client.Object, opts ...client.SubResourceUpdateOption,
		) error {
			return write(func() error { return c.SubResource(kind).Update(ctx, o, opts...) })
		},
	})
}

// The controller is killed after its first write, its second, and so on. Each time, one without any
// state follows. The rotation still ends, and no peer mistrusts another.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	p := newPeers(t, startPlane(t), three...)
	direct := rig.Must(client.NewWithWatch(startShared(t).Config, client.Options{Scheme: known(t)}))
	p.annotate(t, rotateCA, "now")
	const most = 14
	var kills int
	for round, begun := 0, time.Now(); ; round++ {
		one := place{mortal(direct, round%most), p.namespace}
		status, err := p.step(one.newSet(t, p.confirmations, certificates.Options{}))
		if errors.Is(err, errKilled) {
			kills++
			continue
		}
		// On a busy machine the rotation ends after fewer rounds. The kills then continue after its
		// end.
		if done(t, err) && stable(2)(status) && kills >= most {
			break
		}
		if time.Since(begun) > rig.Patience {
			t.Fatalf("no end: %+v", status)
		}
	}
	t.Logf("killed %d times", kills)
	p.until(p.set(), "what is left is swept", stable(2))
	p.assertOneKey(t)
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
	object := ofGardener("Certificate")
	wanted := &requested{}
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
