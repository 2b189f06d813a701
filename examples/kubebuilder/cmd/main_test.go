package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	fleetv1 "github.com/runtime-watcher/runtime-watcher/examples/kubebuilder/api/v1"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
}

const namespace = "fleet-system"

// journal notes what each controller does.
type journal struct {
	mu   sync.Mutex
	done map[string]int
}

func (j *journal) note(what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.done == nil {
		j.done = make(map[string]int)
	}
	j.done[what]++
}

func (j *journal) count(what string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.done[what]
}

func (j *journal) Cluster(_ context.Context, cluster *fleetv1.Cluster) error {
	j.note("cluster " + cluster.Spec.ID)
	return nil
}

func (j *journal) Addon(_ context.Context, addon *fleetv1.Addon) error {
	j.note("addon " + addon.Name)
	return nil
}

// replica is one of two processes of the operator.
type replica struct {
	journal

	addr string
	mgr  ctrl.Manager
	stop func()
	// watches has the watches of Clusters that its cache has opened.
	watches watchCounter
}

// watchCounter counts the requests of an API client that watch Clusters.
type watchCounter struct {
	mu sync.Mutex
	n  int
}

func (w *watchCounter) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

func (w *watchCounter) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if request.URL.Query().Get("watch") == "true" && request.URL.Path == "/apis/fleet.example.com/v1/clusters" {
			w.mu.Lock()
			w.n++
			w.mu.Unlock()
		}
		return next.RoundTrip(request)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

func startReplica(t *testing.T, plane *apiserver.ControlPlane, secret keys.Paths, scheme *runtime.Scheme) *replica {
	t.Helper()
	r := &replica{addr: lab.Address(lab.FreePort(t))}
	at := rest.CopyConfig(plane.Config)
	at.Wrap(r.watches.wrap)
	short := 2 * time.Second
	renew := 1500 * time.Millisecond
	retry := 300 * time.Millisecond
	r.mgr = lab.Must(ctrl.NewManager(at, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "kubebuilder.fleet.example.com", LeaderElectionNamespace: namespace,
		LeaderElectionReleaseOnCancel: true, LeaseDuration: &short, RenewDeadline: &renew, RetryPeriod: &retry,
		Controller: config.Controller{SkipNameValidation: new(true)},
	}))
	lab.NoError(t, setUp(r.mgr, r.addr, secret, r))
	r.stop = lab.Run(t, "replica", r.mgr.Start)
	return r
}

func newCluster(name, id string) *fleetv1.Cluster {
	return &fleetv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       fleetv1.ClusterSpec{ID: id, Domain: lab.RuntimeDomain(core.RuntimeID(id))},
	}
}

func newAddon(name, cluster string) *fleetv1.Addon {
	return &fleetv1.Addon{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: fleetv1.AddonSpec{Cluster: cluster},
	}
}

// An event of a cluster is sent to one of two managers, over mTLS, to both replicas: the one that leads
// reconciles, and the other answers that it is not ready. Then the leader ends, and the other leads.
func TestTwoControllersAndTwoReplicas(t *testing.T) {
	lab.SkipShort(t)
	scheme := runtime.NewScheme()
	lab.NoError(t, errors.Join(fleetv1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	plane := apiserver.StartT(t, apiserver.Options{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		lab.Definition("fleet.example.com", "clusters", "Cluster"), lab.Definition("fleet.example.com", "addons", "Addon"),
	}})
	pki := lab.NewPKI(t)
	var secret keys.Paths
	secret.CA, secret.Certificate, secret.Key = pki.Volume(lab.Must(pki.CA.Server("operator", testpki.Options{}))).Paths()

	admin := lab.Must(client.New(plane.Config, client.Options{Scheme: scheme}))
	create := func(objects ...client.Object) {
		for _, object := range objects {
			lab.NoError(t, admin.Create(t.Context(), object))
		}
	}
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		newCluster("first", "id-1"), newCluster("second", "id-2"),
		newAddon("dns", "first"), newAddon("mesh", "first"), newAddon("other", "second"))

	leader := startReplica(t, plane, secret, scheme)
	lab.Eventually(t, lab.Patience, "the first replica reconciles all", func() bool {
		return leader.count("cluster id-1") > 0 && leader.count("addon mesh") > 0 && leader.count("addon other") > 0
	})
	standby := startReplica(t, plane, secret, scheme)

	send := func(id, domain string, to core.Manager, at *replica) error {
		leaf := lab.Must(lab.RuntimeLeaf(pki.CA, id, domain))
		forwarder := lab.Must(httpmtls.NewForwarder(lab.Material(leaf, pki.CA), at.addr, contract.V3, httpmtls.Options{Timeout: lab.Patience}))
		defer func() { _ = forwarder.Close() }() // It is idle.
		batch := core.NewBatch(coretest.Changed("Deployment", "default", "demo"))
		batch.Source = core.RuntimeID(id)
		return forwarder.Forward(t.Context(), to, batch)
	}
	delivered := func(at *replica) {
		t.Helper()
		for id, all := range map[string][]string{"id-1": {"cluster id-1", "addon dns", "addon mesh"}, "id-2": {"cluster id-2", "addon other"}} {
			before := make(map[string]int)
			for _, what := range all {
				before[what] = at.count(what)
			}
			for _, to := range []core.Manager{"clusters", "addons"} {
				lab.Eventually(t, lab.Patience, fmt.Sprintf("an event of %s for %s is accepted", id, to), func() bool {
					return send(id, lab.RuntimeDomain(core.RuntimeID(id)), to, at) == nil
				})
			}
			for _, what := range all {
				lab.Eventually(t, lab.Patience, what+" is reconciled", func() bool { return at.count(what) > before[what] })
			}
		}
	}

	delivered(leader)
	lab.Eventually(t, lab.Patience, "the standby listens", func() bool { return lab.Accepts(standby.addr) })
	if err := send("id-1", lab.RuntimeDomain("id-1"), "clusters", standby); !errors.Is(err, core.ErrNotReady) {
		t.Errorf("error %v of the replica that does not lead, want %v", err, core.ErrNotReady)
	}
	if err := send("id-1", lab.RuntimeDomain("id-2"), "clusters", leader); !errors.Is(err, core.ErrForbidden) {
		t.Errorf("error %v of a certificate with another domain than the spec, want %v", err, core.ErrForbidden)
	}
	if err := send("id-1", lab.RuntimeDomain("id-1"), "others", leader); !errors.Is(err, core.ErrUnknownManager) {
		t.Errorf("error %v of a manager without a controller, want %v", err, core.ErrUnknownManager)
	}
	// SAN pinning, the requests and the controller share one watch.
	if n := leader.watches.count(); n != 1 {
		t.Errorf("the leader has opened %d watches of Clusters, want 1", n)
	}

	// A deleted Cluster has no runtime any more.
	lab.NoError(t, admin.Delete(t.Context(), newCluster("second", "")))
	lab.Eventually(t, lab.Patience, "the deleted cluster is refused", func() bool {
		return errors.Is(send("id-2", lab.RuntimeDomain("id-2"), "clusters", leader), core.ErrForbidden)
	})
	create(newCluster("second", "id-2"))

	leader.stop()
	delivered(standby)
}
