package certificates_test

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/core"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

const (
	setName    = "watcher"
	serverName = "listener.example"
	// propagation is enough for a volume that lags, also if a reconcile takes two seconds on a slow
	// machine.
	propagation = 3 * time.Second
	// lag is the delay of such a volume.
	lag = 500 * time.Millisecond
	// pace is the time between two reconciles, of which each reads all certificates.
	pace = 150 * time.Millisecond
)

func TestMain(m *testing.M) {
	code := rig.RunTests(m)
	if shared != nil {
		shared.Stop()
	}
	os.Exit(code)
}

// place is a namespace for one test. All tests share an API server and cert-manager.
type place struct {
	client.Client

	namespace string
}

var (
	shared    *certmanager.Process
	startOnce sync.Once
	places    atomic.Int32
)

// startShared starts the API server of all tests, also with the definitions of cert-management.
func startShared(t testing.TB) *apiserver.ControlPlane {
	t.Helper()
	return rig.SharedAPIServer(t, apiserver.Options{Scheme: known(t), CRDPaths: manifests.Gardener(t)})
}

// startPlane starts cert-manager, and makes a namespace for a test.
func startPlane(t testing.TB) place {
	t.Helper()
	plane := startShared(t)
	startOnce.Do(func() {
		shared = rig.Must(certmanager.Start(context.WithoutCancel(t.Context()), plane.Kubeconfig, certmanager.Options{}))
	})
	return newPlace(t, plane.Client)
}

func newPlace(t testing.TB, c client.Client) place {
	t.Helper()
	at := place{c, fmt.Sprint("test-", places.Add(1))}
	rig.NoError(t, c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: at.namespace}}))
	return at
}

func known(t testing.TB) *runtime.Scheme {
	t.Helper()
	known := runtime.NewScheme()
	rig.NoError(t, errors.Join(scheme.AddToScheme(known), certv1.AddToScheme(known), v1beta2.AddToScheme(known)))
	return known
}

func (at place) newSet(
	t testing.TB, unconfirmed func(string, []core.RuntimeID) []core.RuntimeID, opts certificates.Options,
) *certificates.Certificates {
	t.Helper()
	if opts.Propagation == 0 {
		opts.Propagation = propagation
	}
	set, err := certificates.New(at.Client, certificates.Parts{
		Name:        types.NamespacedName{Namespace: at.namespace, Name: setName},
		DNSNames:    []string{serverName},
		Unconfirmed: unconfirmed,
	}, opts)
	rig.NoError(t, err)
	return set
}

func domainOf(id core.RuntimeID) string { return string(id) + ".skr.example" }

// done reports whether a call succeeded. A controller repeats it after an error, because others write the same objects.
func done(t testing.TB, err error) bool {
	t.Helper()
	if err != nil {
		t.Logf("it is repeated: %v", err)
	}
	return err == nil
}

// reconciled waits until the status is as wanted.
func reconciled(
	t testing.TB, set *certificates.Certificates, what string, wanted func(certificates.Status) bool,
) {
	t.Helper()
	rig.Eventually(t, rig.Patience, what, func() bool {
		<-time.After(pace)
		status, err := set.Reconcile(t.Context())
		return done(t, err) && wanted(status)
	})
}

// bootstrapped returns when the listener has its Secret.
func bootstrapped(t testing.TB, set *certificates.Certificates) {
	t.Helper()
	reconciled(t, set, "the certificates are stable",
		func(s certificates.Status) bool { return s.Ready && s.Phase == certificates.PhaseStable })
}

func ensured(t *testing.T, set *certificates.Certificates, r certificates.Runtime) certificates.RuntimeStatus {
	t.Helper()
	var status certificates.RuntimeStatus
	rig.Eventually(t, rig.Patience, fmt.Sprintf("runtime %s has a certificate", r.ID), func() bool {
		var err error
		status, err = set.EnsureRuntime(t.Context(), r)
		return done(t, err) && status.Ready
	})
	return status
}

// peers are two listeners and the agents of some runtimes, as they verify each other. Each has loaded
// a Secret of the control plane: the second listener late, and an agent that is frozen not at all.
type peers struct {
	place

	t       *testing.T
	servers [2]map[string][]byte
	noticed time.Time // when the second listener began to be behind
	loaded  map[core.RuntimeID]map[string][]byte
	frozen  core.RuntimeID
	// cutOff is the runtime that may lose its connection.
	cutOff core.RuntimeID
}

func newPeers(t *testing.T, at place, ids ...core.RuntimeID) *peers {
	t.Helper()
	p := &peers{place: at, t: t, loaded: map[core.RuntimeID]map[string][]byte{}}
	set := p.set()
	bootstrapped(t, set)
	p.servers = [2]map[string][]byte{p.published(set), p.published(set)}
	for _, id := range ids {
		p.loaded[id] = ensured(t, set, certificates.Runtime{ID: id, Domain: domainOf(id)}).Secret
	}
	p.check()
	return p
}

// set returns the certificates that wait for these peers.
func (p *peers) set() *certificates.Certificates {
	p.t.Helper()
	return p.newSet(p.t, p.confirmations, certificates.Options{})
}

// confirmations returns the runtimes that have not loaded the CA with that fingerprint.
func (p *peers) confirmations(fingerprint string, ids []core.RuntimeID) (waiting []core.RuntimeID) {
	for _, id := range ids {
		if !slices.ContainsFunc(certificatesOf(p.loaded[id]["ca.crt"]), func(ca *x509.Certificate) bool {
			return fmt.Sprintf("%x", sha256.Sum256(ca.Raw)) == fingerprint
		}) {
			waiting = append(waiting, id)
		}
	}
	return waiting
}

func (p *peers) published(set *certificates.Certificates) map[string][]byte {
	p.t.Helper()
	return rig.Stored(p.t, p, set.ListenerSecret(), &corev1.Secret{}).Data
}

// step reconciles once, and lets the peers load what is new. Any two of them can verify each other
// before and after.
func (p *peers) step(set *certificates.Certificates) (certificates.Status, error) {
	p.t.Helper()
	<-time.After(pace)
	began := time.Now()
	if !p.noticed.IsZero() && began.Sub(p.noticed) >= lag {
		p.servers[1] = p.servers[0]
		p.noticed = time.Time{}
	}
	status, err := set.Reconcile(p.t.Context())
	if now := p.published(set); !reflect.DeepEqual(now, p.servers[0]) {
		p.servers[0] = now
		if p.noticed.IsZero() {
			p.noticed = began
		}
	}
	p.check()
	whole := p.set() // The client of set may fail.
	for id := range p.loaded {
		issued, err := whole.EnsureRuntime(p.t.Context(), certificates.Runtime{ID: id, Domain: domainOf(id)})
		if done(p.t, err) && issued.Ready && id != p.frozen {
			p.loaded[id] = issued.Secret
		}
	}
	p.check()
	return status, err
}

func (p *peers) check() {
	p.t.Helper()
	for id, runtime := range p.loaded {
		for i, server := range p.servers {
			err := errors.Join(p.trusts(runtime, server, x509.ExtKeyUsageServerAuth),
				p.trusts(server, runtime, x509.ExtKeyUsageClientAuth))
			if err != nil && id != p.cutOff {
				p.t.Fatalf("runtime %s and listener %d: %v", id, i, err)
			}
		}
	}
}

// trusts verifies the certificate of another end.
func (p *peers) trusts(own, other map[string][]byte, usage x509.ExtKeyUsage) error {
	p.t.Helper()
	return verified(own, certificatesOf(other[corev1.TLSCertKey])[0], "", usage)
}

// verified verifies a certificate with the bundle in a Secret.
func verified(trusting map[string][]byte, leaf *x509.Certificate, name string, usage x509.ExtKeyUsage) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusting["ca.crt"])
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

const (
	clientsIssuer = setName + "-clients"
	rotateCA      = "operator.kyma-project.io/rotate-ca"
)

func (at place) annotate(t *testing.T, key, value string) {
	t.Helper()
	var issuer client.Object = &certv1.Issuer{}
	if _, ok := at.Client.(certificates.BothUsagesIssuer); ok {
		issuer = ofGardener("Issuer")
	}
	issuer.SetNamespace(at.namespace)
	issuer.SetName(clientsIssuer)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
	rig.NoError(t, at.Patch(t.Context(), issuer, client.RawPatch(types.MergePatchType, patch)))
}

// until reconciles until the status is as wanted, and returns it.
func (p *peers) until(
	set *certificates.Certificates, what string, wanted func(certificates.Status) bool,
) certificates.Status {
	p.t.Helper()
	var status certificates.Status
	rig.Eventually(p.t, rig.Patience, what, func() bool {
		var err error
		status, err = p.step(set)
		return done(p.t, err) && wanted(status)
	})
	return status
}

func stable(generation int) func(certificates.Status) bool {
	return func(s certificates.Status) bool {
		return s.Phase == certificates.PhaseStable && s.Generation == generation
	}
}
