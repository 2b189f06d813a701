package certificates_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
)

const (
	namespace  = "default"
	setName    = "watcher"
	serverName = "listener.example"
	manager    = core.Manager("tester")
	patience   = 2 * time.Minute
	// propagation is enough for a volume that lags and files that are watched, also on a slow
	// machine.
	propagation = 4 * time.Second
	// lag is the delay of such a volume.
	lag = time.Second
)

func startPlane(t testing.TB) client.Client {
	t.Helper()
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), certv1.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}

	plane := apiserver.StartT(t, apiserver.Options{Scheme: known})
	certmanager.StartT(t, plane.Kubeconfig, certmanager.Options{})
	return plane.Client
}

func newSet(
	t testing.TB, c client.Client, confirmed certificates.Confirmations, recorder ...events.EventRecorder,
) *certificates.Certificates {
	t.Helper()
	opts := certificates.Options{Propagation: propagation}
	if len(recorder) > 0 {
		opts.Recorder = recorder[0]
	}

	set, err := certificates.New(c, types.NamespacedName{Namespace: namespace, Name: setName}, []string{serverName},
		confirmed, opts)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func domainOf(id core.RuntimeID) string { return string(id) + ".skr.example" }

// bootstrapped returns when the listener has its Secret.
func bootstrapped(t testing.TB, set *certificates.Certificates) {
	t.Helper()
	rig.Eventually(t, patience, "the certificates are stable", func() bool {
		status, err := set.Reconcile(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return status.Ready && status.Phase == certificates.PhaseStable
	})
}

func ensured(t *testing.T, set *certificates.Certificates, r certificates.Runtime) certificates.RuntimeStatus {
	t.Helper()
	var status certificates.RuntimeStatus

	rig.Eventually(t, patience, fmt.Sprintf("runtime %s has a certificate", r.ID), func() bool {
		var err error
		if status, err = set.EnsureRuntime(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return status.Ready
	})
	return status
}

// fleetLab is a listener and the agents' side of some runtimes, all with files that follow the
// Secrets of a control plane.
type fleetLab struct {
	t      *testing.T
	client client.Client
	fleet  *fleet.Fleet
	addr   string

	listenerVolume *testpki.Volume
	runtimes       []*labRuntime

	mu      sync.Mutex
	arrived map[string]bool
	failed  []error
	sent    atomic.Int64
	stop    context.CancelFunc
	done    sync.WaitGroup
}

type labRuntime struct {
	id     core.RuntimeID
	volume *testpki.Volume
	last   map[string][]byte
	files  *keys.Files
	box    *outbox.Outbox
	frozen atomic.Bool // gets no new Secret
}

func newLab(t *testing.T, c client.Client, ids ...core.RuntimeID) *fleetLab {
	t.Helper()
	f, err := fleet.New(fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}

	lab := &fleetLab{t: t, client: c, fleet: f, arrived: map[string]bool{}}
	set := newSet(t, c, lab.confirmations())
	bootstrapped(t, set)

	ctx, stop := context.WithCancel(context.Background())
	lab.stop = stop

	t.TempDir() // The first call says when all are removed: after the end.
	t.Cleanup(lab.end)
	lab.listen(ctx, set)
	for _, id := range ids {
		lab.addRuntime(ctx, set, id)
	}

	lab.done.Go(func() { lab.kubelet(ctx, newSet(t, c, lab.confirmations())) })
	lab.done.Go(func() { lab.write(ctx) })
	return lab
}

func (lab *fleetLab) confirmations() certificates.Confirmations {
	return certificates.FromFleet(lab.fleet, certificates.FleetOptions{WarmUp: time.Millisecond})
}

func (lab *fleetLab) end() {
	lab.stop()
	lab.done.Wait()
}

func (lab *fleetLab) files(ctx context.Context, data map[string][]byte) (*testpki.Volume, *keys.Files) {
	lab.t.Helper()
	volume := testpki.NewVolume(lab.t.TempDir())
	if err := volume.Write(data); err != nil {
		lab.t.Fatal(err)
	}

	ca, cert, key := volume.Paths()

	files, err := keys.NewFiles(keys.Paths{CA: ca, Certificate: cert, Key: key},
		keys.FilesOptions{Poll: 200 * time.Millisecond})
	if err != nil {
		lab.t.Fatal(err)
	}

	lab.run(ctx, files.Start)
	return volume, files
}

func (lab *fleetLab) run(ctx context.Context, start func(context.Context) error) {
	lab.done.Go(func() {
		if err := start(ctx); err != nil && ctx.Err() == nil {
			lab.t.Error(err)
		}
	})
}

func (lab *fleetLab) secret(ctx context.Context, set *certificates.Certificates) map[string][]byte {
	var secret corev1.Secret
	if err := lab.client.Get(ctx, set.ListenerSecret(), &secret); err != nil && ctx.Err() == nil {
		lab.t.Error(err)
	}
	return secret.Data
}

func (lab *fleetLab) listen(ctx context.Context, set *certificates.Certificates) {
	lab.t.Helper()
	volume, files := lab.files(ctx, lab.secret(ctx, set))
	lab.listenerVolume = volume
	lab.addr = rig.Address(rig.FreePort(lab.t))

	pinning := listener.SANPinning(listener.DomainsFunc(
		func(_ context.Context, id core.RuntimeID, _ *core.WatchEvent) (string, error) {
			return domainOf(id), nil
		}))
	handler := core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		lab.mu.Lock()
		defer lab.mu.Unlock()

		lab.arrived[string(d.Runtime)+"/"+d.Event.Watched.Name] = true
		return nil
	})

	l, err := listener.New(listener.FromTLS(listener.PeerOptions{}), pinning,
		map[core.Manager]core.Handler{manager: handler},
		listener.Options{Addr: lab.addr, TLS: keys.ServerTLSConfig(files), Fleet: lab.fleet})
	if err != nil {
		lab.t.Fatal(err)
	}

	lab.run(ctx, l.Start)
	rig.Eventually(lab.t, patience, "the listener is ready", func() bool { return l.Ready() == nil })
}

func (lab *fleetLab) addRuntime(ctx context.Context, set *certificates.Certificates, id core.RuntimeID) {
	lab.t.Helper()
	data := ensured(lab.t, set, certificates.Runtime{ID: id, Domain: domainOf(id)}).Secret
	r := &labRuntime{id: id, last: data}
	r.volume, r.files = lab.files(ctx, data)

	forwarder, err := httpmtls.NewForwarder(r.files, lab.addr, contract.V3,
		httpmtls.Options{ServerName: serverName, Identity: id})
	if err != nil {
		lab.t.Fatal(err)
	}

	strict := core.ForwarderFunc(func(ctx context.Context, m core.Manager, batch core.Batch) error {
		err := forwarder.Forward(ctx, m, batch)
		if err != nil && ctx.Err() == nil {
			lab.fail(fmt.Errorf("runtime %s: %w", id, err))
		}
		return err
	})

	r.box, err = outbox.New(strict, outbox.Options{
		Settle: time.Millisecond, Epoch: rand.Text(), HeartbeatInterval: 300 * time.Millisecond,
		Managers:   []core.Manager{manager},
		MinBackoff: 50 * time.Millisecond, MaxBackoff: time.Second,
		Heartbeat: func(core.Manager) core.Heartbeat {
			status := r.files.Status()
			return core.Heartbeat{
				Instance: string(id), CAFingerprints: status.Material.RootFingerprints,
				CertificateFingerprint: status.Material.Fingerprint, CertificateExpiry: status.Material.NotAfter,
			}
		},
	})
	if err != nil {
		lab.t.Fatal(err)
	}

	lab.run(ctx, r.box.Start)
	lab.runtimes = append(lab.runtimes, r)
}

func (lab *fleetLab) fail(err error) {
	lab.mu.Lock()
	defer lab.mu.Unlock()

	lab.failed = append(lab.failed, err)
}

func (lab *fleetLab) failures() []error {
	lab.mu.Lock()
	defer lab.mu.Unlock()
	return slices.Clone(lab.failed)
}

// kubelet writes Secrets to the places of their mounts. Those of runtimes pass the operator's
// reconcile.
func (lab *fleetLab) kubelet(ctx context.Context, set *certificates.Certificates) {
	published := lab.secret(ctx, set)
	noticed := time.Time{}

	for tick := time.NewTicker(100 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}

		if data := lab.secret(ctx, set); ctx.Err() == nil && !reflect.DeepEqual(data, published) {
			switch {
			case noticed.IsZero():
				noticed = time.Now()
			case time.Since(noticed) >= lag:
				published, noticed = data, time.Time{}
				lab.store(lab.listenerVolume, data)
			}
		}

		for _, r := range lab.runtimes {
			status, err := set.EnsureRuntime(ctx, certificates.Runtime{ID: r.id, Domain: domainOf(r.id)})
			if err != nil && ctx.Err() == nil {
				lab.t.Error(err)
			}

			if status.Ready && !r.frozen.Load() && !reflect.DeepEqual(status.Secret, r.last) {
				r.last = status.Secret
				lab.store(r.volume, status.Secret)
			}
		}
	}
}

func (lab *fleetLab) store(volume *testpki.Volume, data map[string][]byte) {
	if err := volume.Write(data); err != nil {
		lab.t.Error(err)
	}
}

// write makes changes in all runtimes, each of another object, so that none is merged.
func (lab *fleetLab) write(ctx context.Context) {
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}

		n := lab.sent.Add(1)
		for _, r := range lab.runtimes {
			r.box.Accept(manager, core.WatchEvent{
				Operation: core.OperationUpdate, Time: time.Now(),
				Watched:    types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("object-%d", n)},
				WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
			})
		}
	}
}

// assertNothingLost waits for everything that was sent so far.
func (lab *fleetLab) assertNothingLost() {
	lab.t.Helper()
	sent := lab.sent.Load()

	rig.Eventually(lab.t, patience, "everything arrives", func() bool {
		lab.mu.Lock()
		defer lab.mu.Unlock()
		for _, r := range lab.runtimes {
			for n := int64(1); n < sent; n++ {
				if !lab.arrived[fmt.Sprintf("%s/object-%d", r.id, n)] {
					return false
				}
			}
		}
		return true
	})
	lab.t.Logf("%d events of each of %d runtimes arrived", sent, len(lab.runtimes))
}

func annotate(t *testing.T, c client.Client, set *certificates.Certificates, key, value string) {
	t.Helper()
	issuer := &certv1.Issuer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: set.ClientsIssuer().Name}}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
	if err := c.Patch(t.Context(), issuer, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
}

// until reconciles until the status is as wanted, and returns it.
func (lab *fleetLab) until(
	set *certificates.Certificates, what string, wanted func(certificates.Status) bool,
) certificates.Status {
	lab.t.Helper()
	var status certificates.Status

	rig.Eventually(lab.t, patience, what, func() bool {
		var err error
		if status, err = set.Reconcile(lab.t.Context()); err != nil {
			lab.t.Fatal(err)
		}
		return wanted(status)
	})
	return status
}

func stable(generation int) func(certificates.Status) bool {
	return func(s certificates.Status) bool {
		return s.Phase == certificates.PhaseStable && s.Generation == generation
	}
}
