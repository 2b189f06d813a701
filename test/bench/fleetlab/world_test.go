package fleetlab

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	agentlib "github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/operator"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// atOnce is the number of runtimes that are made at the same time.
const atOnce = 32

type world struct {
	t         *testing.T
	plane     *apiserver.ControlPlane
	namespace string
	lossy     bool

	ca       *testpki.CA
	volume   *testpki.Volume
	network  *network
	runtimes []*runtime
	// empty is the resident memory of the operator before the first connection, in bytes.
	empty int64

	mu sync.Mutex
	// replicas are all that were started. The last one runs.
	replicas []*replica
	// resident has the memory of the operator at each report since the begin of a scenario.
	resident []int64
}

// replica is a process of the operator, with its last report and its use of resources then.
type replica struct {
	*lab.Process

	address string
	last    record.Status
	used    kit.Usage
}

// newWorld starts everything, and returns when all runtimes are fresh.
func newWorld(t *testing.T, n int, lossy bool) *world {
	t.Helper()
	debug.SetGCPercent(200) // This process has memory, and shares its processors with the operator.
	w := &world{
		t: t, plane: lab.SharedAPIServer(t, apiserver.Options{}), lossy: lossy, namespace: fmt.Sprintf("fleet-%d-%v", n, lossy),
		ca: lab.NewPKI(t).CA, volume: testpki.NewVolume(t.TempDir()), network: &network{oracle: kit.NewOracle(n)},
	}
	w.serve(w.ca, w.ca)
	w.populate(n)
	first := w.startReplica()
	w.network.lead(first.address)
	w.await("the operator leads", func() bool { return w.now().Leading })
	<-time.After(2 * operator.Interval) // Its caches are complete.
	w.empty = lab.Must(kit.UsageOf(first.Pid())).Resident
	for _, r := range w.runtimes {
		r.start()
	}
	w.await("all are fresh", w.allFresh)
	lab.Run(t, "changes", func(ctx context.Context) error {
		w.write(ctx)
		return nil
	})
	return w
}

// serve gives the operator a new certificate of issuer, and the CA bundle.
func (w *world) serve(issuer *testpki.CA, bundle ...*testpki.CA) {
	leaf := lab.Must(issuer.Server("operator", testpki.Options{}))
	lab.NoError(w.t, w.volume.Write(testpki.Files(leaf, bundle...)))
}

// populate creates the namespace with an object for each of n runtimes, and their key material.
func (w *world) populate(n int) {
	w.t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	lab.NoError(w.t, w.plane.Client.Create(w.t.Context(), namespace))
	w.runtimes = make([]*runtime, n)
	workqueue.ParallelizeUntil(w.t.Context(), atOnce, n, func(i int) {
		r := newRuntime(w.network, i)
		r.renew(w.ca)
		r.trust(w.ca)
		w.runtimes[i] = r
		if err := w.plane.Client.Create(w.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespace, Name: r.name,
			Annotations: map[string]string{controllerruntime.DomainAnnotation: lab.RuntimeDomain(core.RuntimeID(r.name))},
		}}); err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(func() {
		workqueue.ParallelizeUntil(context.Background(), atOnce, n, func(i int) { w.runtimes[i].stop() })
	})
}

// write changes random runtimes as a Poisson process. That equals one such process for each
// runtime.
func (w *world) write(ctx context.Context) {
	const objects = 20
	mean := float64(*changeEvery) / float64(len(w.runtimes))
	for next := time.Now(); ctx.Err() == nil; {
		next = next.Add(time.Duration(rand.ExpFloat64() * mean))
		<-time.After(time.Until(next))
		w.runtimes[rand.IntN(len(w.runtimes))].change(rand.IntN(objects))
	}
}

func (w *world) startReplica() *replica {
	w.t.Helper()
	r := &replica{address: lab.Address(lab.FreePort(w.t))}
	settings := operator.Settings{
		Kubeconfig: w.plane.Kubeconfig, Record: filepath.Join(w.t.TempDir(), "operator.jsonl"), Keys: kit.Paths(w.volume), Poll: poll,
		Manager: string(manager), Listen: r.address, Namespace: w.namespace, Fleet: true,
		Replica: &operator.Replica{Service: w.namespace, Number: len(w.replicas) + 1, Lease: *lease},
	}
	r.Process = lab.NewProcess(w.t, "operator", lab.Must(os.Executable()), settings.Environ())
	r.Launch()
	w.mu.Lock()
	w.replicas = append(w.replicas, r)
	w.mu.Unlock()
	records := record.NewReader(settings.Record)
	lab.Run(w.t, "records of an operator", func(ctx context.Context) error {
		for tick := time.Tick(20 * time.Millisecond); ctx.Err() == nil; <-tick {
			for _, entry := range lab.Must(records.Next()) {
				w.note(r, entry)
			}
		}
		return nil
	})
	return r
}

// note notes a record of an operator.
func (w *world) note(r *replica, entry record.Entry) {
	if look := entry.Look; look != nil {
		number := lab.Must(kit.RuntimeNumber(look.Runtime))
		if lost := w.lossy && number%7 == 0; !lost {
			w.network.oracle.Reconciled(number, look.Started)
		}
		return
	}
	used, err := kit.UsageOf(r.Pid())
	if err != nil {
		return // It has ended.
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r.last = *entry.Status
	r.used = used
	if r == w.replicas[len(w.replicas)-1] {
		w.resident = append(w.resident, used.Resident)
	}
}

func (w *world) operator() *replica {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replicas[len(w.replicas)-1]
}

func (w *world) now() record.Status {
	r := w.operator()
	w.mu.Lock()
	defer w.mu.Unlock()
	return r.last
}

func (w *world) allFresh() bool { return w.now().Runtimes[fleet.Fresh] == len(w.runtimes) }

// allKnown reports whether all runtimes have sent a request to the operator.
func (w *world) allKnown() bool {
	known := 0
	for _, n := range w.now().Runtimes {
		known += n
	}
	return known == len(w.runtimes)
}

func (w *world) await(what string, done func() bool) {
	w.t.Helper()
	lab.Eventually(w.t, *patience, what, done)
}

// awaitSeen waits until all changes so far are reconciled. It returns the number of runtimes for
// which that is not so in time.
func (w *world) awaitSeen(within time.Duration) (missed int) {
	began := record.Now()
	for missed = w.network.oracle.Missing(began); missed > 0 && record.Now()-began < within; {
		<-time.After(20 * time.Millisecond)
		missed = w.network.oracle.Missing(began)
	}
	return missed
}

type totals struct {
	changes, looks, dials, failures int64
	operator, lab                   time.Duration
	resyncs                         map[string]int64
}

func (w *world) totals() totals {
	t := totals{
		dials: w.network.dials.Load(), failures: w.network.failures.Load(), resyncs: map[string]int64{},
		lab: lab.Must(kit.UsageOf(os.Getpid())).Processor,
	}
	t.changes, t.looks = w.network.oracle.Counts()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.replicas {
		t.operator += r.used.Processor
		for cause, n := range r.last.Resyncs {
			t.resyncs[cause] += n
		}
	}
	return t
}

// since returns the differences. An operator that was killed between has its last report.
func (t totals) since(before totals) totals {
	t.changes, t.looks = t.changes-before.changes, t.looks-before.looks
	t.dials, t.failures = t.dials-before.dials, t.failures-before.failures
	t.operator, t.lab = t.operator-before.operator, t.lab-before.lab
	for cause, n := range before.resyncs {
		t.resyncs[cause] -= n
	}
	maps.DeleteFunc(t.resyncs, func(_ string, n int64) bool { return n == 0 })
	return t
}

// play plays one scenario, and returns its measurement.
func (w *world) play(s scenario) *result {
	w.t.Helper()
	r := &result{scenario: s.name}
	w.network.acks.Take()
	w.network.oracle.Latency.Take()
	w.mu.Lock()
	w.resident = nil
	w.mu.Unlock()
	before := w.totals()
	ended := s.run(w, r)
	w.await("all are connected", w.allKnown)
	r.connected = time.Since(ended)
	w.await("all are fresh", w.allFresh)
	r.fresh = time.Since(ended)
	r.missed = w.awaitSeen(*patience)
	w.await("no resync is to come", func() bool { return w.allFresh() && w.now().ToCome == 0 })
	<-time.After(2 * operator.Interval)
	r.totals, r.ack, r.look = w.totals().since(before), w.network.acks.Take(), w.network.oracle.Latency.Take()
	r.memory, r.stacks, r.heap = w.perRuntime(w.memory()-w.empty), w.perRuntime(int64(w.now().Stack)), w.perRuntime(int64(w.now().Heap))
	return r
}

// memory returns the mean memory in the second half of the scenario.
func (w *world) memory() (mean int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	half := w.resident[len(w.resident)/2:]
	for _, resident := range half {
		mean += resident / int64(len(half))
	}
	return mean
}

// perRuntime returns KiB.
func (w *world) perRuntime(bytes int64) float64 {
	return float64(bytes) / float64(len(w.runtimes)) / 1024
}

// network is what all runtimes share.
type network struct {
	oracle *kit.Oracle
	// replicas stands for the Service of the operator: a new connection goes to one of these
	// addresses at random, as with kube-proxy.
	replicas atomic.Pointer[[]string]
	// acks are the durations of requests with events that were acknowledged.
	acks kit.Samples
	// dials counts attempts to connect, and failures the requests that failed.
	dials, failures atomic.Int64
}

func (n *network) lead(addresses ...string) { n.replicas.Store(&addresses) }

// runtime is one runtime with its agent. It has an address of its own.
type runtime struct {
	number  int
	name    string
	network *network
	dialer  net.Dialer

	leaf     *testpki.Leaf
	material atomic.Pointer[keys.Material]
	agent    atomic.Pointer[kit.Agent]
	// dead means that the agent is killed: it says no farewell.
	dead atomic.Bool
}

func newRuntime(n *network, number int) *runtime {
	const perByte, first = 250, 1
	from := net.IPv4(127, byte(first+number/perByte/perByte), byte(number/perByte%perByte), byte(first+number%perByte))
	return &runtime{
		number: number, name: kit.RuntimeName(number), network: n,
		dialer: net.Dialer{LocalAddr: &net.TCPAddr{IP: from}},
	}
}

// renew gives the runtime a certificate of ca, with its domain.
func (r *runtime) renew(ca *testpki.CA) {
	r.leaf = lab.Must(ca.Client(r.name, testpki.Options{DNSNames: []string{lab.RuntimeDomain(core.RuntimeID(r.name))}}))
}

// trust replaces the CA bundle.
func (r *runtime) trust(cas ...*testpki.CA) {
	r.material.Store(lab.Material(r.leaf, cas...))
}

// Material implements [keys.Source].
func (r *runtime) Material() (*keys.Material, error) { return r.material.Load(), nil }

func (r *runtime) start() {
	r.dead.Store(false)
	r.agent.Store(lab.Must(kit.StartAgent(context.Background(), manager, "localhost",
		agentlib.Parts{Tracing: r, ClientKeys: r, Dial: r.dial}, agentlib.Options{
			Instance: "runtime-watcher-agent-0", Version: "v0.0.0-lab", ConfigHash: "6b86b273ff34fce1",
			ControlPlane: agentlib.ControlPlane{Protocol: *protocol},
			Outbox:       agentlib.Outbox{HeartbeatInterval: *heartbeat},
		})))
}

// stop ends the agent as SIGKILL does.
func (r *runtime) stop() {
	if agent := r.agent.Load(); agent != nil {
		r.dead.Store(true)
		agent.Kill()
	}
}

func (r *runtime) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	r.network.dials.Add(1)
	replicas := *r.network.replicas.Load()
	return r.dialer.DialContext(ctx, network, replicas[rand.IntN(len(replicas))])
}

// change is a change of one of the runtime's objects at this moment.
func (r *runtime) change(object int) {
	r.network.oracle.Changed(r.number)
	r.agent.Load().Change(core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: "object-" + strconv.Itoa(object)},
		WatchedGVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		Operation:  core.OperationUpdate, Field: core.FieldSpec, Generation: 1, Time: time.Now(),
	})
}

// Webhook implements Tracing of [agentlib.Parts].
func (*runtime) Webhook(next http.Handler) http.Handler { return next }

// Acceptor implements Tracing of [agentlib.Parts].
func (*runtime) Acceptor(next core.Acceptor) core.Acceptor { return next }

// Forwarder measures each attempt. It implements Tracing of [agentlib.Parts].
func (r *runtime) Forwarder(next core.Forwarder) core.Forwarder {
	return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		if r.dead.Load() {
			return context.Canceled
		}
		began := time.Now()
		err := next.Forward(ctx, manager, batch)
		switch {
		case err != nil:
			r.network.failures.Add(1)
		case len(batch.Events) > 0:
			r.network.acks.Add(time.Since(began))
		}
		return err
	})
}
