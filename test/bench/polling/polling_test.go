// Package polling compares an operator that gets events with operators that poll, side by side. See
// docs/maintainers/measurements.md.
package polling_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	agentlib "github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

var (
	runtimes = flag.Int("runtimes", 100, "number of runtimes")
	scale    = flag.Int("scale", 240, "waits are shorter by this factor")
	protocol = flag.String("protocol", "", "version of HTTP of the agents, as in httpmtls.Options")
	duration = flag.Duration("duration", 10*time.Minute, "time to measure, before it is scaled")
)

func TestMain(m *testing.M) {
	os.Exit(kit.Main(m, map[string]func(context.Context) error{"operator": operate}))
}

// scaled scales a wait. Nothing else is scaled.
func scaled(wait time.Duration) time.Duration { return wait / time.Duration(*scale) }

// way is the source of an operator's reconciles: events or polling.
type way struct {
	name     string
	interval time.Duration
	// heartbeat is the interval of the agents. It is 0 without events.
	heartbeat time.Duration
}

func (w way) events() bool { return w.heartbeat > 0 }

// TestEventsAgainstPolling prints the table of docs/maintainers/measurements.md. Each runtime changes once in an
// hour on average. With events the operator also polls fresh runtimes, every 30 min by default.
func TestEventsAgainstPolling(t *testing.T) {
	polls := []way{{"polling every 5 min", 5 * time.Minute, 0}, {"polling every 30 s", 30 * time.Second, 0}}
	t.Logf("%d runtimes, waits scaled by %d, %v measured", *runtimes, *scale, *duration)
	events := run(t, way{"events", 30 * time.Minute, outbox.Defaults().HeartbeatInterval})
	t.Log(events)
	t.Log(run(t, way{"events, heartbeats every 5 min", 30 * time.Minute, 5 * time.Minute}))
	for _, poll := range polls {
		r := run(t, poll)
		t.Log(r)
		if soon, late := events.delays.At(99), r.delays.At(50); soon >= late {
			t.Errorf("%s: p50 is %v, want more than the p99 with events, %v", poll.name, late, soon)
		}
		if r.gets <= events.gets {
			t.Errorf("%d requests to API servers, want more than the %d with events", r.gets, events.gets)
		}
	}
}

// result has the cost of one way in an hour, and the delays from the changes to the looks.
type result struct {
	name           string
	gets, requests int64
	processor      time.Duration
	delays         kit.Delays
}

func (r *result) String() string {
	return fmt.Sprintf("%-30s | changes %4d | staleness p50 %v p99 %v | in an hour: %d requests to API servers, "+
		"%d to the operator, %v of processor time", r.name, len(r.delays), r.delays.At(50),
		r.delays.At(99), r.gets, r.requests, r.processor.Round(10*time.Millisecond))
}

// run measures one way. The staleness is from a change to the request that reads it.
func run(t *testing.T, w way) (r *result) {
	t.Helper()
	t.Run(w.name, func(t *testing.T) {
		pki := lab.NewPKI(t)
		oracle := kit.NewOracle(*runtimes)
		servers, all := startServers(t, pki.CA, oracle)
		leaf := lab.Must(pki.CA.Server("operator", testpki.Options{Usages: lab.BothUsages()}))
		operator := kit.Start(t, "operator", settings{
			Keys: kit.Paths(pki.Volume(leaf)), Server: servers.URL, Runtimes: *runtimes,
			Interval: scaled(w.interval), Events: w.events(),
		})
		address, change := operator.Line(), func(i int) int {
			defer oracle.Changed(i)
			return all[i].Put(kyma())
		}
		if w.events() {
			agents := kit.StartAgents(t, pki, manager, address, kit.RuntimeName, *runtimes, agentlib.Options{
				ControlPlane: agentlib.ControlPlane{Protocol: *protocol}, Outbox: scaledOutbox(w.heartbeat),
			})
			unnoticed := change
			change = func(i int) int {
				base := unnoticed(i)
				agents[i].Saw(kymaKind(), kyma(), base)
				return base
			}
		}
		r = measure(t, w, servers, oracle, operator, change)
	})
	return r
}

// measure measures after each runtime was looked at, and the first resync was sent again.
func measure(
	t *testing.T, w way, servers *kit.Servers, oracle *kit.Oracle, operator *kit.Process, change func(int) int,
) *result {
	t.Helper()
	awaitLooks(t, oracle)
	<-time.After(scaled(2 * outbox.Defaults().ResendResync))
	oracle.Latency.Take()
	before := lab.Must(operator.Used()).Processor
	gets := servers.Requests.Load()
	var requests, after int64
	operator.Ask("", &requests)
	ctx, stop := context.WithTimeout(t.Context(), scaled(*duration))
	defer stop()
	changeAtRandom(ctx, change)
	operator.Ask("", &after)
	r := &result{
		name: w.name, gets: hourly(servers.Requests.Load() - gets), requests: hourly(after - requests),
		processor: hourly(lab.Must(operator.Used()).Processor - before),
	}
	awaitLooks(t, oracle)
	r.delays = oracle.Latency.Take()
	for i := range r.delays {
		r.delays[i] = unscaled(r.delays[i], w)
	}
	return r
}

func awaitLooks(t *testing.T, oracle *kit.Oracle) {
	t.Helper()
	lab.Eventually(t, 5*time.Minute, "the operator has seen all changes", func() bool { return oracle.Missing(record.Now()) == 0 })
}

// changeAtRandom changes runtimes, each once in an hour on average, until ctx ends.
func changeAtRandom(ctx context.Context, change func(i int) int) {
	mean := scaled(time.Hour) / time.Duration(*runtimes)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(rand.ExpFloat64() * float64(mean))):
			change(rand.IntN(*runtimes))
		}
	}
}

// scaledOutbox returns the defaults of an agent, with scaled waits.
func scaledOutbox(heartbeat time.Duration) agentlib.Outbox {
	resend := outbox.Defaults().Resend
	for i := range resend {
		resend[i] = scaled(resend[i])
	}
	return agentlib.Outbox{
		Settle: scaled(outbox.Defaults().Settle), Resend: resend, ResendResync: scaled(outbox.Defaults().ResendResync),
		HeartbeatInterval: scaled(heartbeat),
	}
}

// startServers starts an API server with one object for each runtime. The first read of an object
// also counts as the read of a change.
func startServers(t *testing.T, ca *testpki.CA, oracle *kit.Oracle) (servers *kit.Servers, all []*kit.Store) {
	t.Helper()
	servers = kit.StartServers(t, ca)
	servers.Read = func(server string) { oracle.Reconciled(lab.Must(kit.RuntimeNumber(server)), record.Now()) }
	for i := range *runtimes {
		all = append(all, servers.Add(kit.RuntimeName(i), kymaKind(), "kymas"))
		all[i].Put(kyma())
		oracle.Changed(i)
	}
	return servers, all
}

// kyma is as large as those of a fleet.
func kyma() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kymaKind())
	object.SetNamespace("kyma-system")
	object.SetName("default")
	object.SetUID("aa1d8e0b-6b7e-4a3c-9a53-6a3e2b1f0c9d")
	modules := slices.Repeat([]any{map[string]any{"name": "module", "channel": "regular"}}, 50)
	object.Object["spec"] = map[string]any{"modules": modules}
	return object
}

// hourly returns the value for an hour, from the measured one.
func hourly[T int64 | time.Duration](measured T) T {
	return T(float64(measured) * time.Hour.Seconds() / duration.Seconds())
}

// unscaled returns a delay with the waits of the true time. With events that is the settle time, and
// everything else is work. With polling it is nearly all of the delay.
func unscaled(delay time.Duration, w way) time.Duration {
	if w.events() {
		return delay - scaled(outbox.Defaults().Settle) + outbox.Defaults().Settle
	}
	return delay * time.Duration(*scale)
}

// settings are those of an operator, which is a process of its own.
type settings struct {
	// Keys is the key material of its listener, and has the CA of the API servers.
	Keys keys.Paths
	// Server is the URL of the API servers.
	Server string
	// Runtimes is the number of runtimes.
	Runtimes int
	// Interval is the time between two looks at a runtime, when nothing happens.
	Interval time.Duration
	// Events means that the operator also listens for events.
	Events bool
}

// operator looks at runtimes: at each once in an interval, and after an event.
type operator struct {
	settings

	clients  []client.Client
	queue    workqueue.TypedRateLimitingInterface[int]
	source   *controllerruntime.Source[int]
	requests atomic.Int64
}

// operate prints the address of its listener, and then the number of requests to it, when asked.
func operate(ctx context.Context) error {
	o := &operator{
		settings: kit.Settings[settings](),
		queue:    workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[int]()),
		source:   controllerruntime.NewSource(requests, controllerruntime.SourceOptions{}),
	}
	for i := range o.Runtimes {
		o.clients = append(o.clients, o.connect(i))
		o.queue.AddAfter(i, rand.N(o.Interval))
	}
	const workers = 16
	for range workers {
		go o.work(ctx)
	}
	address := lab.Must(o.listen(ctx))
	fmt.Println(address)
	return kit.Answer(func(string) any { return o.requests.Load() })
}

// work looks at the runtimes of the queue.
func (o *operator) work(ctx context.Context) {
	for {
		i, shutdown := o.queue.Get()
		if shutdown {
			return
		}
		if err := o.look(ctx, i); err != nil {
			fmt.Fprintln(os.Stderr, "look:", err)
		}
		o.queue.Done(i)
	}
}

// look reads the object of a runtime, which is the least that a reconcile does.
func (o *operator) look(ctx context.Context, i int) error {
	defer o.queue.AddAfter(i, o.Interval)
	kyma := &unstructured.Unstructured{}
	kyma.SetGroupVersionKind(kymaKind())
	reader := o.source.Client(i, core.RuntimeID(kit.RuntimeName(i)), o.clients[i])
	return reader.Get(ctx, client.ObjectKey{Namespace: "kyma-system", Name: "default"}, kyma)
}

func kymaKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// connect returns a client for a runtime, with a connection of its own.
func (s settings) connect(i int) client.Client {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(kymaKind(), meta.RESTScopeNamespace)
	config := &rest.Config{
		Host: s.Server + "/" + kit.RuntimeName(i), QPS: -1, Dial: new(net.Dialer).DialContext,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.Keys.CA},
	}
	return lab.Must(client.New(config, client.Options{Scheme: runtime.NewScheme(), Mapper: mapper}))
}

// listen starts the listener of an operator with events, and returns its address.
func (o *operator) listen(ctx context.Context) (string, error) {
	if !o.Events {
		return "", nil
	}
	if err := o.source.Start(ctx, o.queue); err != nil {
		return "", err
	}
	material := lab.Must(keys.NewFiles(o.Keys, keys.FilesOptions{}))
	watched := lab.Must(fleet.New(fleet.Options{}))
	socket := lab.Must(new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"))
	events := lab.Must(listener.New(listener.FromTLS(keys.Roots(material), listener.PeerOptions{}),
		lab.Pinning(),
		map[core.Manager]core.Handler{manager: o.source},
		listener.Options{Listener: socket, TLS: keys.ServerTLSConfig(material), Fleet: watched, Hooks: listener.Hooks{
			Answered: func(hook.Answer) { o.requests.Add(1) },
		}}))
	go func() {
		if err := events.Start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "listener:", err)
		}
	}()
	return socket.Addr().String(), nil
}

func requests(_ context.Context, d core.Delivery) ([]int, error) {
	i, err := kit.RuntimeNumber(string(d.Runtime))
	return []int{i}, err
}

const manager = core.Manager("lifecycle-manager")
