// Package scale measures the control-plane side with thousands of runtimes: the time until each
// was reconciled once, the memory of the operator, and the wait of a new runtime.
//
// The control plane is a real API server. One cheap server replaces the API servers of all runtimes.
// It answers each request after a latency, and its Deployments are ready immediately. The operator is a
// process of its own, so that its memory can be measured.
//
//	go test ./test/bench/scale -run TestScale -v -timeout 2h -runtimes 10000 -dead 1000
package scale

import (
	"context"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

const (
	namespace = "default"
	patience  = 40 * time.Minute
)

var (
	many    = flag.Int("runtimes", 100, "runtimes that can be reached")
	dead    = flag.Int("dead", 20, "runtimes that drop each packet")
	latency = flag.Duration("latency", 100*time.Millisecond, "time of each answer of a runtime")
)

func TestMain(m *testing.M) {
	os.Exit(kit.Main(m, map[string]func(context.Context) error{"operator": operate}))
}

// TestScale measures in this order: the installation everywhere (not judged), a look at each
// runtime after a restart, a look at each that has nothing new, and new runtimes beside a changed
// Watcher and dead runtimes.
func TestScale(t *testing.T) {
	lab.SkipShort(t)
	w := newWorld(t)
	w.createWatcher("first")
	w.represent("runtime", 0, *many)
	o := w.startOperator()
	w.t.Logf("installed in %d runtimes, without latency, after %v", *many, o.allReady().Round(time.Millisecond))
	w.servers.Latency.Store(int64(*latency))
	o.Kill()
	o = w.lookAtAll()
	w.newcomers(o)
	memory := lab.Must(o.Used()).Peak >> 20
	w.judge(memory <= 300, "memory of the operator: %d MiB resident at the peak, want at most 300", memory)
}

// world is the control plane, and the servers of the runtimes.
type world struct {
	t           *testing.T
	plane       *apiserver.ControlPlane
	ca          *testpki.CA // of the runtimes
	servers     *kit.Servers
	deadAddress string
}

type operator struct {
	*kit.Process

	t     *testing.T
	begun time.Time

	mu      sync.Mutex
	reports map[string]string // state by name
}

// lookAtAll measures a look at each runtime after a restart, and one that has nothing new.
func (w *world) lookAtAll() *operator {
	w.t.Helper()
	// 10,000 runtimes in 10 minutes, and the start of a process.
	limit := time.Duration(*many)*60*time.Millisecond + 5*time.Second
	requests := w.servers.Requests.Load()
	o := w.startOperator()
	cold := o.allReady()
	w.judgeLooks("look at each runtime after a restart", cold, limit, w.servers.Requests.Load()-requests, lab.Must(o.Used()).Processor)
	requests = w.servers.Requests.Load()
	processor := lab.Must(o.Used()).Processor
	o.forgetReports()
	begun := time.Now()
	w.touchWatcher("first")
	o.allReady()
	w.judgeLooks("look at each unchanged runtime", time.Since(begun), limit, w.servers.Requests.Load()-requests,
		lab.Must(o.Used()).Processor-processor)
	return o
}

// judge logs a figure, or fails the test if a goal is not met. A few runtimes are for the suite, which runs
// on busy machines.
func (w *world) judge(met bool, format string, args ...any) {
	w.t.Helper()
	if met || *many < 1000 {
		w.t.Logf(format, args...)
	} else {
		w.t.Errorf(format, args...)
	}
}

// newcomers come while all runtimes get a new Watcher, and the dead ones are tried.
func (w *world) newcomers(o *operator) {
	w.t.Helper()
	w.represent("dead", 0, *dead)
	lab.Eventually(w.t, patience, "all dead runtimes have failed", func() bool {
		return o.count("dead-", "Failed") == *dead
	})
	w.createWatcher("second")
	const number = 5
	for n := range number {
		begun := time.Now()
		w.represent("new", n, n+1)
		lab.Eventually(w.t, time.Minute, "a new runtime is ready", func() bool {
			return o.count(fmt.Sprintf("new-%d", n), "Ready") == 1
		})
		took := time.Since(begun)
		w.judge(took <= 10*time.Second, "new runtime %d: installed after %v, want at most 10 s", n, took.Round(time.Millisecond))
	}
}

func (w *world) judgeLooks(what string, took, limit time.Duration, requests int64, processor time.Duration) {
	w.t.Helper()
	w.judge(took <= limit, "%s: %v, want at most %v, each with %.1f requests and %v of a processor", what,
		took.Round(time.Millisecond), limit, float64(requests)/float64(*many), (processor / time.Duration(*many)).Round(10*time.Microsecond))
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, deadAddress: blackHole(t)}
	w.plane = apiserver.StartT(t, apiserver.Options{
		Scheme: newScheme(), CRDs: []*apiextensionsv1.CustomResourceDefinition{manifests.Watchers(t)},
		CRDPaths: lab.Must(certmanager.Definitions(t.Context())),
	})
	startIssuer(t, w.plane.Config)
	w.ca = lab.NewPKI(t).CA
	w.servers = kit.StartServers(t, w.ca)
	return w
}

func (w *world) represent(prefix string, from, to int) {
	w.t.Helper()
	const atOnce = 32
	workqueue.ParallelizeUntil(w.t.Context(), atOnce, to-from, func(n int) { w.representOne(fmt.Sprintf("%s-%d", prefix, from+n)) })
}

func (w *world) representOne(name string) {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	host := name + ".example.com"
	secret := &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"config": kit.Kubeconfig("https://"+host+":6443", host, w.ca)}}
	meta.Annotations = map[string]string{"skr-domain": host}
	for _, object := range []client.Object{secret, &corev1.ConfigMap{ObjectMeta: meta}} {
		if err := w.plane.Client.Create(w.t.Context(), object); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *world) createWatcher(name string) {
	w.t.Helper()
	lab.NoError(w.t, w.plane.Client.Create(w.t.Context(), &v1beta2.Watcher{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1beta2.WatcherSpec{
			Manager:         name,
			ServiceInfo:     v1beta2.Service{Name: "events", Namespace: "kcp-system", Port: 8082},
			ResourceToWatch: v1beta2.WatchableGVR{Version: "v1", Resource: "configmaps"},
			Gateway: v1beta2.GatewayConfig{LabelSelector: v1beta2.GatewaySelector{
				MatchLabels: map[string]v1beta2.LabelValue{"a": "b"},
			}},
		},
	}))
}

// touchWatcher makes the operator look at all runtimes, with nothing new.
func (w *world) touchWatcher(name string) {
	w.t.Helper()
	watcher := &v1beta2.Watcher{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	lab.NoError(w.t, w.plane.Client.Patch(w.t.Context(), watcher,
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"touched":"true"}}}`))))
}

func (w *world) startOperator() *operator {
	w.t.Helper()
	o := &operator{t: w.t, begun: time.Now(), reports: map[string]string{}}
	// As docs/guide/embedding.md says: the lists of a start are garbage soon.
	o.Process = kit.Start(w.t, "operator", settings{w.plane.Kubeconfig, w.servers.Listener.Addr().String(), w.deadAddress},
		"GOMEMLIMIT=240MiB")
	go func() {
		for line := range o.Lines {
			name, state, _ := strings.Cut(line, " ")
			o.mu.Lock()
			o.reports[name] = state
			o.mu.Unlock()
		}
	}()
	return o
}

func (o *operator) forgetReports() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.reports)
}

// count returns how many runtimes with that prefix have been reported last with a state.
func (o *operator) count(prefix, state string) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, last := range o.reports {
		if strings.HasPrefix(name, prefix) && last == state {
			n++
		}
	}
	return n
}

// allReady returns how long after the start all runtimes were reported as ready.
func (o *operator) allReady() time.Duration {
	o.t.Helper()
	lab.Eventually(o.t, patience, "all runtimes are ready", func() bool { return o.count("runtime-", "Ready") == *many })
	return time.Since(o.begun)
}

// dialToFill is longer than a connection to this machine takes.
const dialToFill = 500 * time.Millisecond

// blackHole returns an address of this machine that answers no SYN, as that of a cluster that is
// gone: the queue of its listener is full.
func blackHole(t *testing.T) string {
	t.Helper()
	fd := lab.Must(syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0))
	t.Cleanup(func() { _ = syscall.Close(fd) })
	lab.NoError(t, errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)))
	bound := lab.Must(syscall.Getsockname(fd))
	address := fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port)
	for full := false; !full; {
		connected, err := (&net.Dialer{Timeout: dialToFill}).DialContext(t.Context(), "tcp", address)
		if full = err != nil; !full {
			t.Cleanup(func() { _ = connected.Close() })
		}
	}
	return address
}

// issuer issues 20,000 certificates in a minute, which takes cert-manager half an hour. All are of
// one CA.
type issuer struct {
	client.Client

	ca *testpki.CA
}

func startIssuer(t *testing.T, config *rest.Config) {
	t.Helper()
	mgr := lab.NewManager(t, config, newScheme())
	i := &issuer{Client: mgr.GetClient(), ca: lab.NewPKI(t).CA}
	lab.NoError(t, ctrl.NewControllerManagedBy(mgr).For(&certv1.Certificate{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: 8}).Complete(i))
	lab.Run(t, "issuer", mgr.Start)
}

// Reconcile stores the Secret of a Certificate. Without controllers that sign, no CA needs its key.
func (i *issuer) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	certificate := &certv1.Certificate{}
	if err := i.Get(ctx, request.NamespacedName, certificate); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	spec := &certificate.Spec
	opts := testpki.Options{DNSNames: spec.DNSNames, NotAfter: time.Now().Add(spec.Duration.Duration), Usages: []x509.ExtKeyUsage{}}
	for usage, extended := range map[certv1.KeyUsage]x509.ExtKeyUsage{
		certv1.UsageClientAuth: x509.ExtKeyUsageClientAuth, certv1.UsageServerAuth: x509.ExtKeyUsageServerAuth,
	} {
		if slices.Contains(spec.Usages, usage) {
			opts.Usages = append(opts.Usages, extended)
		}
	}
	leaf, err := i.ca.Client(spec.CommonName, opts)
	if err != nil {
		return reconcile.Result{}, err
	}
	files := testpki.Files(leaf, i.ca)
	if spec.IsCA {
		files[corev1.TLSCertKey] = i.ca.PEM
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: spec.SecretName, Labels: spec.SecretTemplate.Labels},
		Type:       corev1.SecretTypeTLS, Data: files,
	}
	if err := i.Create(ctx, secret); !apierrors.IsAlreadyExists(err) {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}

// settings are those of an operator: a file, and addresses.
type settings struct{ Kubeconfig, Servers, Dead string }

// operate is an operator with the documented defaults. It prints a line for each report.
func operate(ctx context.Context) error {
	s := kit.Settings[settings]()
	ctrl.SetLogger(logr.Discard())
	config := lab.Must(clientcmd.BuildConfigFromFlags("", s.Kubeconfig))
	config.QPS = -1 // As ctrl.GetConfig sets it.
	known := newScheme()
	mgr := lab.Must(ctrl.NewManager(config, ctrl.Options{
		Scheme: known, Metrics: server.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
	}))
	direct := lab.Must(client.New(config, client.Options{Scheme: known}))
	set := lab.Must(certificates.New(direct, certificates.Parts{
		Name:        types.NamespacedName{Namespace: namespace, Name: "watcher"},
		DNSNames:    []string{"control-plane.example.com"},
		Unconfirmed: func(string, []core.RuntimeID) []core.RuntimeID { return nil },
	}, certificates.Options{}))
	installer := lab.Must(installation.New(installation.Parts{Image: "agent.example.com/agent:v1", ControlPlane: "control-plane.example.com:443"}, installation.Options{}))
	kind := &metav1.PartialObjectMetadata{}
	kind.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	kubeconfigs := runtimes.NewKubeconfigs(mgr.GetAPIReader(), "config", client.ObjectKeyFromObject,
		runtimes.KubeconfigOptions{Configure: s.toLoopback})
	parts := runtimes.Parts{
		Object: kind, Identify: identify, Connect: kubeconfigs, Certificates: set, Installer: installer,
	}
	if err := runtimes.SetUp(mgr, parts, runtimes.Options{Report: report}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newScheme() *runtime.Scheme {
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), v1beta2.AddToScheme(known), certv1.AddToScheme(known)); err != nil {
		panic(err)
	}
	return known
}

// toLoopback connects to the servers, or to an address that never answers, with the dialer of the
// operator.
func (s settings) toLoopback(config *rest.Config) {
	dial := config.Dial
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		to := s.Servers
		if strings.HasPrefix(address, "dead-") {
			to = s.Dead
		}
		return dial(ctx, network, to)
	}
}

func identify(_ context.Context, object client.Object) (runtimes.Identity, error) {
	domain := object.GetAnnotations()["skr-domain"]
	if domain == "" {
		return runtimes.Identity{}, nil
	}
	return runtimes.Identity{ID: core.RuntimeID(object.GetName()), Domain: domain}, nil
}

func report(_ context.Context, object client.Object, status installation.Status) error {
	fmt.Printf("%s %s\n", object.GetName(), status.State)
	return nil
}
