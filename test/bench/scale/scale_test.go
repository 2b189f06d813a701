// Package scale measures the control-plane side with thousands of runtimes: the time until each
// was reconciled once, the memory of the operator, and the wait of a new runtime.
//
// The control plane is a real API server. One cheap process replaces the API servers of all
// runtimes. It answers each request after a latency, and its Deployments are ready at once. The
// operator is a process of its own, so that its memory can be measured.
//
//	go test ./test/bench/scale -run TestScale -v -timeout 2h -runtimes 10000 -dead 1000
package scale

import (
	"context"
	"encoding/base64"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
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
	looks   = flag.Bool("looks", true, "measure the looks at all runtimes, before new ones come")
	latency = flag.Duration("latency", 100*time.Millisecond, "time of each answer of a runtime")
)

func TestMain(m *testing.M) {
	os.Exit(kit.Main(m, map[string]func(context.Context) error{"servers": serve, "operator": operate}))
}

// TestScale measures in this order: the installation everywhere (not judged), a look at each
// runtime after a restart, a look at each that has nothing new, and new runtimes beside a changed
// Watcher and dead runtimes.
func TestScale(t *testing.T) {
	lab.SkipShort(t)
	w := newWorld(t)
	w.createWatcher("first")
	w.represent("runtime", 0, *many)
	w.setLatency(0)
	o := w.startOperator()
	w.t.Logf("installed in %d runtimes, without latency, after %v", *many, o.allReady().Round(time.Millisecond))
	w.setLatency(*latency)
	if *looks {
		o.Kill()
		o = w.lookAtAll()
	}
	w.newcomers(o)
	if memory := lab.Must(o.Used()).Peak >> 20; memory > 300 && judged() {
		t.Errorf("memory of the operator: %d MiB, want at most 300", memory)
	} else {
		t.Logf("memory of the operator: at most %d MiB resident", memory)
	}
}

// world is the control plane, and the servers of the runtimes.
type world struct {
	t           *testing.T
	plane       *apiserver.ControlPlane
	kubeconfig  string // of a runtime, with a place for its name
	servers     *kit.Process
	api         string
	deadAddress string
}

// operator is a process, and its last reports.
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
	requests := w.requests()
	o := w.startOperator()
	cold := o.allReady()
	w.judge("look at each runtime after a restart", cold, limit, w.requests()-requests, lab.Must(o.Used()).Processor)
	requests, processor := w.requests(), lab.Must(o.Used()).Processor
	o.forgetReports()
	begun := time.Now()
	w.touchWatcher("first")
	o.allReady()
	w.judge("look at each unchanged runtime", time.Since(begun), limit, w.requests()-requests, lab.Must(o.Used()).Processor-processor)
	return o
}

// judged reports whether the figures have to meet the goals. A few runtimes are for the suite, which
// runs on busy machines.
func judged() bool { return *many >= 1000 }

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
		if took := time.Since(begun); took > 10*time.Second && judged() {
			w.t.Errorf("new runtime %d: installed after %v, want at most 10 s", n, took.Round(time.Millisecond))
		} else {
			w.t.Logf("new runtime %d: installed after %v", n, took.Round(time.Millisecond))
		}
	}
}

func (w *world) judge(what string, took, limit time.Duration, requests int, processor time.Duration) {
	w.t.Helper()
	w.t.Logf("%s: %v, each with %.1f requests and %v of a processor", what, took.Round(time.Millisecond),
		float64(requests)/float64(*many), (processor / time.Duration(*many)).Round(10*time.Microsecond))
	if took > limit && judged() {
		w.t.Errorf("%s: %v, want at most %v", what, took, limit)
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, deadAddress: blackHole(t)}
	w.plane = apiserver.StartT(t, apiserver.Options{
		Scheme: newScheme(), CRDs: []*apiextensionsv1.CustomResourceDefinition{manifests.Watchers(t)},
		CRDPaths: lab.Must(certmanager.Definitions(t.Context())),
	})
	startIssuer(t, w.plane.Config)
	pki := lab.NewPKI(t)
	leaf := lab.Must(pki.CA.Server("", testpki.Options{DNSNames: []string{"*.runtimes.example"}}))
	w.kubeconfig = fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: runtime
contexts: [{name: runtime, context: {cluster: runtime, user: operator}}]
clusters: [{name: runtime, cluster: {server: "https://%%s.runtimes.example:6443", certificate-authority-data: %s}}]
users: [{name: operator, user: {token: secret}}]
`, base64.StdEncoding.EncodeToString(pki.CA.PEM))
	w.servers = kit.Start(t, "servers", kit.Paths(pki.Volume(leaf)))
	w.api = w.servers.Line()
	return w
}

func (w *world) represent(prefix string, from, to int) {
	w.t.Helper()
	kit.InParallel(to-from, func(n int) { w.representOne(fmt.Sprintf("%s-%d", prefix, from+n)) })
}

func (w *world) representOne(name string) {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	secret := &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"config": fmt.Appendf(nil, w.kubeconfig, name)}}
	meta.Annotations = map[string]string{"skr-domain": name + ".example.com"}
	for _, object := range []client.Object{secret, &corev1.ConfigMap{ObjectMeta: meta}} {
		if err := w.plane.Client.Create(w.t.Context(), object); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *world) createWatcher(name string) {
	w.t.Helper()
	if err := w.plane.Client.Create(w.t.Context(), &v1beta2.Watcher{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1beta2.WatcherSpec{
			Manager:         name,
			ServiceInfo:     v1beta2.Service{Name: "events", Namespace: "kcp-system", Port: 8082},
			ResourceToWatch: v1beta2.WatchableGVR{Version: "v1", Resource: "configmaps"},
			Gateway: v1beta2.GatewayConfig{LabelSelector: v1beta2.GatewaySelector{
				MatchLabels: map[string]v1beta2.LabelValue{"a": "b"},
			}},
		},
	}); err != nil {
		w.t.Fatal(err)
	}
}

// touchWatcher makes the operator look at all runtimes, with nothing new.
func (w *world) touchWatcher(name string) {
	w.t.Helper()
	watcher := &v1beta2.Watcher{}
	if err := w.plane.Client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, watcher); err != nil {
		w.t.Fatal(err)
	}
	watcher.Labels = map[string]string{"touched": "true"}
	if err := w.plane.Client.Update(w.t.Context(), watcher); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) setLatency(latency time.Duration) {
	w.t.Helper()
	var requests int
	w.servers.Ask(latency.String(), &requests)
}

// requests is the number of requests to all runtimes so far.
func (w *world) requests() (n int) {
	w.t.Helper()
	w.servers.Ask("", &n)
	return n
}

func (w *world) startOperator() *operator {
	w.t.Helper()
	o := &operator{t: w.t, begun: time.Now(), reports: map[string]string{}}
	// As docs/guide/embedding.md says: the lists of a start are garbage soon.
	o.Process = kit.Start(w.t, "operator", settings{w.plane.Kubeconfig, w.api, w.deadAddress}, "GOMEMLIMIT=240MiB")
	go func() {
		for line := range o.Lines {
			name, rest, _ := strings.Cut(line, " ")
			state, _, _ := strings.Cut(rest, " ")
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
