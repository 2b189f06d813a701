// Package multicluster compares an operator with clusters of adapters/multicluster with one that
// has the caches of the provider kubeconfig of multicluster-runtime. See
// docs/maintainers/measurements.md.
package multicluster_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
	"sigs.k8s.io/multicluster-runtime/providers/kubeconfig"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/adapters/multicluster"
	agentlib "github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

var (
	clusters = flag.String("clusters", "0,10,100,1000", "numbers of clusters")
	objects  = flag.Int("objects", 100, "number of ConfigMaps of each cluster")
	size     = flag.Int("size", 2048, "bytes of each ConfigMap")
	writes   = flag.Int("writes", 500, "number of writes")
	rate     = flag.Int("rate", 50, "writes in a second, over all clusters")
)

const (
	manager = core.Manager("configmaps")
	// patience bounds each wait.
	patience = 30 * time.Minute
)

func TestMain(m *testing.M) {
	os.Exit(kit.Main(m, map[string]func(context.Context) error{"operator": operate}))
}

// TestClustersWithoutCaches prints the table of docs/maintainers/measurements.md.
func TestClustersWithoutCaches(t *testing.T) {
	t.Logf("%d objects of %d bytes in each cluster, %d writes, %d in a second", *objects, *size, *writes, *rate)
	for text := range strings.SplitSeq(*clusters, ",") {
		n := lab.Must(strconv.Atoi(text))
		cached := run(t, n, false)
		watched := run(t, n, true)
		t.Log(cached)
		t.Log(watched)
		if n >= 100 && watched.memory >= cached.memory {
			t.Errorf("%d clusters: %d bytes without caches, want less than the %d with them", n, watched.memory, cached.memory)
		}
	}
}

type result struct {
	name                 string
	clusters             int
	memory               int64
	connections, watches int64
	atStart, requests    int64
	delays               kit.Delays
}

func (r *result) String() string {
	return fmt.Sprintf("%4d clusters | %-14s | memory %7.1f MiB | connections %4d | watches %4d | requests at the start %6d, "+
		"for %d writes %5d | staleness p50 %v p99 %v", r.clusters, r.name, float64(r.memory)/(1<<20), r.connections, r.watches,
		r.atStart, len(r.delays), r.requests, r.delays.At(50), r.delays.At(99))
}

func run(t *testing.T, n int, watched bool) (r *result) {
	t.Helper()
	r = &result{name: "caches", clusters: n}
	if watched {
		r.name = "without caches"
	}
	t.Run(fmt.Sprintf("%d clusters, %s", n, r.name), func(t *testing.T) {
		pki := lab.NewPKI(t)
		servers, all := startServers(t, pki.CA, n)
		leaf := lab.Must(pki.CA.Server("operator", testpki.Options{}))
		s := settings{Keys: kit.Paths(pki.Volume(leaf)), Server: servers.URL + "/" + controlPlane}
		write := func(cluster, object int) int { return all[cluster].Put(configMap(object, time.Now().UnixNano())) }
		if watched {
			s.Addr = lab.Address(lab.FreePort(t))
			// A resync that is sent again would be among the writes.
			agents := kit.StartAgents(t, pki, manager, s.Addr, clusterName, n, agentlib.Options{
				Outbox: agentlib.Outbox{ResendResync: -1},
			})
			unnoticed := write
			write = func(cluster, object int) int {
				base := unnoticed(cluster, object)
				agents[cluster].Saw(corev1.SchemeGroupVersion.WithKind("ConfigMap"), configMap(object, 0), base)
				return base
			}
		}
		r.measure(t, servers, kit.Start(t, "operator", s), write)
	})
	return r
}

// measure writes after each object was reconciled once.
func (r *result) measure(t *testing.T, servers *kit.Servers, p *kit.Process, write func(cluster, object int) int) {
	t.Helper()
	lab.Eventually(t, patience, "all objects were reconciled", func() bool {
		<-time.After(time.Second)
		return now(p).Reconciles >= r.clusters**objects
	})
	r.atStart = servers.Requests.Load()
	if r.clusters > 0 {
		r.write(t, p, write)
	}
	r.requests = servers.Requests.Load() - r.atStart
	r.memory, r.connections, r.watches = now(p).Memory, servers.Connections.Load(), servers.Watches.Load()
}

// write writes at a steady rate, each object at most once while another write of it is not seen.
func (r *result) write(t *testing.T, p *kit.Process, write func(cluster, object int) int) {
	t.Helper()
	pace := time.NewTicker(time.Second / time.Duration(*rate))
	defer pace.Stop()
	distinct := make(map[[2]int]bool)
	for len(distinct) < min(*writes, r.clusters**objects) {
		at := [2]int{rand.IntN(r.clusters), rand.IntN(*objects)}
		if distinct[at] {
			continue
		}
		distinct[at] = true
		<-pace.C
		write(at[0], at[1])
	}
	lab.Eventually(t, patience, "all writes were reconciled", func() bool {
		<-time.After(time.Second)
		r.delays = now(p).Delays
		return len(r.delays) >= len(distinct)
	})
	r.delays = kit.Sorted(r.delays)
}

func now(p *kit.Process) (s seen) {
	p.Ask("", &s)
	return s
}

const (
	// written is the key of a ConfigMap with the time of its write, in nanoseconds.
	written = "written"
	// controlPlane is the API server with a Secret for each cluster.
	controlPlane = "control-plane"
)

func clusterName(i int) string { return fmt.Sprint("cluster-", i) }

// startServers starts a control plane, and clusters with ConfigMaps.
func startServers(t *testing.T, ca *testpki.CA, n int) (servers *kit.Servers, all []*kit.Store) {
	t.Helper()
	servers = kit.StartServers(t, ca)
	secrets := servers.Add(controlPlane, corev1.SchemeGroupVersion.WithKind("Secret"), "secrets")
	for i := range n {
		all = append(all, servers.Add(clusterName(i), corev1.SchemeGroupVersion.WithKind("ConfigMap"), "configmaps"))
		for object := range *objects {
			all[i].Put(configMap(object, 0))
		}
		secrets.Put(secret(servers.URL, clusterName(i), ca))
	}
	return servers, all
}

// secret has the kubeconfig of a cluster. The name of its server gives it connections of its own.
func secret(url, name string, ca *testpki.CA) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name),
			Labels:      map[string]string{"sigs.k8s.io/multicluster-runtime-kubeconfig": "true"},
			Annotations: map[string]string{controllerruntime.DomainAnnotation: name + ".example.com"},
		},
		Data: map[string][]byte{"kubeconfig": kit.Kubeconfig(url+"/"+name, name+".example.com", ca)},
	}
}

func configMap(n int, at int64) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: objectName(n), UID: types.UID(objectName(n))},
		Data:       map[string]string{written: strconv.FormatInt(at, 10), "text": strings.Repeat("x", *size)},
	}
}

func objectName(n int) string { return fmt.Sprint("object-", n) }

// settings are those of an operator, which is a process of its own.
type settings struct {
	// Keys is the key material of the listener, and Server the URL of the control plane.
	Keys   keys.Paths
	Server string
	// Addr is the address of the listener. Without one, the operator has caches.
	Addr string
}

// workers is what reads over a network need: with caches, one would do.
const workers = 10

// seen is the state of an operator.
type seen struct {
	// Memory is the resident memory after a garbage collection, in bytes.
	Memory int64
	// Reconciles counts all, and Delays has the times from each write to its first reconcile.
	Reconciles int
	Delays     []time.Duration
}

type operator struct {
	settings

	mgr mcmanager.Manager

	mu     sync.Mutex
	seen   seen
	newest map[mcreconcile.Request]int64
}

// operate runs until its parent ends.
func operate(ctx context.Context) error {
	log.SetLogger(logr.Discard())
	o := &operator{settings: kit.Settings[settings](), newest: make(map[mcreconcile.Request]int64)}
	config := &rest.Config{
		Host: o.Server, BearerToken: "t", TLSClientConfig: rest.TLSClientConfig{CAFile: o.Keys.CA},
		QPS: -1, // As ctrl.GetConfig sets it.
	}
	local := lab.Must(ctrl.NewManager(config, ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: ctrlconfig.Controller{MaxConcurrentReconciles: workers},
	}))
	setUp := o.cached
	if o.Addr != "" {
		setUp = o.watched
	}
	if err := setUp(ctx, local); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	go func() {
		_ = kit.Answer(o.state)
		stop()
	}()
	return o.mgr.Start(ctx)
}

// cached sets up the provider of multicluster-runtime.
func (o *operator) cached(ctx context.Context, local ctrl.Manager) error {
	provider := kubeconfig.New(kubeconfig.Options{Namespace: "default"})
	o.mgr = lab.Must(mcmanager.WithMultiCluster(local, provider))
	if err := provider.SetupWithManager(ctx, o.mgr); err != nil {
		return err
	}
	return mcbuilder.ControllerManagedBy(o.mgr).Named("configmaps").For(&corev1.ConfigMap{}).Complete(mcreconcile.Func(o.reconcile))
}

// watched sets up the provider of this project.
func (o *operator) watched(ctx context.Context, local ctrl.Manager) error {
	kubeconfigs := remote.NewKubeconfigs(local.GetAPIReader(), "kubeconfig", client.ObjectKeyFromObject, remote.KubeconfigOptions{
		Scheme: local.GetScheme(),
		Mapper: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return local.GetRESTMapper(), nil },
	})
	provider := multicluster.NewProvider(kubeconfigs, multicluster.ProviderOptions{})
	o.mgr = lab.Must(mcmanager.WithMultiCluster(local, provider))
	secrets := lab.Must(controllerruntime.NewRuntimes(local.GetCache(), lab.MetadataOf(corev1.SchemeGroupVersion.WithKind("Secret")),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{}))
	files := lab.Must(keys.NewFiles(o.Keys, keys.FilesOptions{}))
	events := lab.Must(controllerruntime.AddListener(local, controllerruntime.ListenerConfig{
		Addr: o.Addr, Senders: controllerruntime.MutualTLS(files), Verifier: listener.SANPinning(secrets),
	}))
	source := lab.Must(controllerruntime.SourceFor(events, manager, multicluster.Enqueue, controllerruntime.SourceOptions{}))
	if err := provider.SetupWithManager(ctx, o.mgr); err != nil {
		return err
	}
	return multicluster.Complete(o.mgr, mcbuilder.ControllerManagedBy(o.mgr).Named("configmaps"), multicluster.Objects{
		Source: source, Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Reconciler: mcreconcile.Func(o.reconcile),
	})
}

// reconcile notes how long the write waited that it reads first.
func (o *operator) reconcile(ctx context.Context, r mcreconcile.Request) (reconcile.Result, error) {
	cluster, err := o.mgr.GetCluster(ctx, r.ClusterName)
	if err != nil {
		return reconcile.Result{}, err
	}
	object := &corev1.ConfigMap{}
	if err := cluster.GetClient().Get(ctx, r.NamespacedName, object); err != nil {
		return reconcile.Result{}, err
	}
	at, err := strconv.ParseInt(object.Data[written], 10, 64)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen.Reconciles++
	if at > o.newest[r] {
		o.newest[r] = at
		o.seen.Delays = append(o.seen.Delays, time.Since(time.Unix(0, at)))
	}
	return reconcile.Result{}, err
}

// state is also the end of a garbage collection.
func (o *operator) state(string) any {
	debug.FreeOSMemory()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen.Memory = lab.Must(kit.UsageOf(os.Getpid())).Resident
	state := o.seen
	state.Delays = slices.Clone(state.Delays)
	return state
}
