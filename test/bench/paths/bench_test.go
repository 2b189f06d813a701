// Package paths measures events from the forwarder of an agent to the handler of an operator, over
// HTTP and over NATS JetStream, with TLS and loopback. Both ends are in one process, a NATS server is
// another. See docs/maintainers/measurements.md.
package paths_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// BenchmarkV3 sends events of contract v3 over native mTLS, with SAN pinning against a cache of
// 10,000 objects. One operation is one call of Forward. Allocations are those of both ends. Rounds
// alternate with those of twins that carry the same bytes: "bare" and "lean" are the ratios of the
// processor times (see [newTwin]).
func BenchmarkV3(b *testing.B) {
	pinned := listener.SANPinning(newRuntimes(b))
	for _, load := range loads() {
		for _, protocol := range []string{"h2", "http/1.1"} {
			b.Run(fmt.Sprintf("%s/%s", load, protocol), func(b *testing.B) {
				calls := overHTTP(b, pinned, protocol, load)
				bareTwin := newTwin(b, nil, protocol, load)
				leanTwin := newTwin(b, pinned, protocol, load)
				b.ReportAllocs()
				b.ResetTimer()
				var all, bare, lean cost
				for left := b.N; left > 0; left -= calls.round() {
					n := min(left, calls.round())
					all.measure(func() { calls.run(b, n) })
					b.StopTimer()
					bare.measure(func() { bareTwin.run(b, n) })
					lean.measure(func() { leanTwin.run(b, n) })
					b.StartTimer()
				}
				b.StopTimer()
				all.report(b, b.N*load.events)
				b.ReportMetric(all.processor.Seconds()/bare.processor.Seconds(), "bare")
				b.ReportMetric(all.processor.Seconds()/lean.processor.Seconds(), "lean")
			})
		}
	}
}

// timeout bounds each step of the lean twin. No step takes so long.
const timeout = time.Minute

// newTwin returns the twin of overHTTP: a server and clients of net/http. With a verifier the twin is
// lean: it has timeouts as overHTTP has them, reads each event with encoding/json, and asks the
// verifier. Without one it is bare: it reads the bytes. Both answer 202.
func newTwin(b *testing.B, verifier core.Verifier, protocol string, l load) *calls {
	b.Helper()
	ca := lab.Must(testpki.NewCA("ca", testpki.Options{}))
	operator := &counter{}
	forwarders := []core.Forwarder{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if read(r, verifier) {
			operator.handled.Add(int64(l.events))
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	server.EnableHTTP2 = protocol == "h2"
	server.TLS = keys.ServerTLSConfig(lab.Material(lab.Must(ca.Server("kcp", testpki.Options{})), ca))
	client := http.Client{}
	if verifier != nil {
		client.Timeout = timeout
		server.Config.ReadTimeout = timeout
		server.Config.WriteTimeout = timeout
		server.Config.IdleTimeout = timeout
	}
	server.StartTLS()
	b.Cleanup(server.Close)
	for i := range l.runtimes {
		config := lab.Must(keys.ClientTLSConfig(lab.Material(leafOf(ca, runtimeID(i)), ca), "127.0.0.1"))
		batch := contract.Claim(newBatch(l.events), runtimeID(i))
		transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: server.EnableHTTP2}
		b.Cleanup(transport.CloseIdleConnections)
		client.Transport = transport
		forwarders = append(forwarders, bare{client: client, url: server.URL, body: lab.Must(contract.V3.Encode(&batch)).Body})
	}
	return newCalls(b, operator, forwarders, l)
}

// read reads a body, and reports whether the verifier lets all events of it pass.
func read(r *http.Request, verifier core.Verifier) bool {
	if verifier == nil {
		n, err := io.Copy(io.Discard, r.Body)
		return err == nil && n > 0
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	var events []struct {
		ID, Source, Type, Time, Epoch, Sequence string
		Data                                    struct {
			Watched          types.NamespacedName
			WatchedGVK       schema.GroupVersionKind
			Operation, Field string
			Generation       int64
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&events); err != nil { //nolint:musttag // Cases of names do not matter.
		return false
	}
	leaf := r.TLS.PeerCertificates[0]
	peer := core.Peer{ID: core.RuntimeID(leaf.Subject.CommonName), DNSNames: leaf.DNSNames}
	for _, event := range events {
		if verifier.Verify(ctx, peer, &core.WatchEvent{Watched: event.Data.Watched, WatchedGVK: event.Data.WatchedGVK}) != nil {
			return false
		}
	}
	return true
}

// bare posts the same body in each call.
type bare struct {
	client http.Client
	url    string
	body   []byte
}

func (f bare) Forward(ctx context.Context, _ core.Manager, _ core.Batch) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url, bytes.NewReader(f.body))
	if err != nil {
		return err
	}
	answer, err := f.client.Do(request)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// objects is the number of runtimes that the control plane has registered.
const objects = 10_000

func kymaKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// newRuntimes returns the registered runtimes in a cache of controller-runtime with its informer and
// its indexes.
func newRuntimes(b *testing.B) *controllerruntime.Runtimes {
	b.Helper()
	ca := lab.Must(testpki.NewCA("ca", testpki.Options{}))
	servers := kit.StartServers(b, ca)
	store := servers.Add("control-plane", kymaKind(), "kymas")
	for i := range objects {
		name := kit.RuntimeName(i)
		store.Put(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: "kcp-system", Name: name, Labels: map[string]string{"kyma-project.io/runtime-id": name},
			Annotations: map[string]string{controllerruntime.DomainAnnotation: lab.RuntimeDomain(core.RuntimeID(name))},
		}})
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(kymaKind(), meta.RESTScopeNamespace)
	config := &rest.Config{Host: servers.URL + "/control-plane", TLSClientConfig: rest.TLSClientConfig{CAData: ca.PEM}}
	kymas := lab.Must(cache.New(config, cache.Options{Mapper: mapper, Scheme: runtime.NewScheme()}))
	runtimes := lab.Must(controllerruntime.NewRuntimes(kymas, lab.MetadataOf(kymaKind()), controllerruntime.ByName,
		controllerruntime.RuntimesOptions{}))
	go func() { _ = kymas.Start(b.Context()) }()
	if !kymas.WaitForCacheSync(b.Context()) {
		b.Fatal("the cache does not sync")
	}
	return runtimes
}

const manager = core.Manager("lifecycle-manager")

// load is the shape of a benchmark: each runtime has one call of Forward at a time, with that many
// events.
type load struct{ runtimes, events int }

// String is a part of the name of a benchmark.
func (l load) String() string { return fmt.Sprintf("events=%d/runtimes=%d", l.events, l.runtimes) }

// loads are those of the goals: batches, and calls with a single event.
func loads() []load { return []load{{4, 300}, {16, 1}, {1, 1}} }

func runtimeID(n int) core.RuntimeID { return core.RuntimeID(kit.RuntimeName(n)) }

// leafOf issues the certificate of a runtime.
func leafOf(ca *testpki.CA, id core.RuntimeID) *testpki.Leaf {
	return lab.Must(ca.Client(string(id), testpki.Options{DNSNames: []string{lab.RuntimeDomain(id)}}))
}

// newBatch returns a batch as an outbox makes it: with an epoch, numbers and IDs.
func newBatch(events int) core.Batch {
	batch := core.Batch{Epoch: "K3ZQVV5XW4WZB5NQ3V7DGR2BXA", Events: make([]core.Numbered, events)}
	for i := range batch.Events {
		batch.Events[i] = core.Numbered{
			Sequence: uint64(i + 1), ID: fmt.Sprintf("%s-%d", batch.Epoch, i+1),
			WatchEvent: core.WatchEvent{
				Watched:    types.NamespacedName{Namespace: "kyma-system", Name: fmt.Sprintf("manifest-%d", i)},
				WatchedGVK: schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Manifest"},
				Operation:  core.OperationUpdate, Field: core.FieldSpec, Generation: 7, Time: someTime,
			},
		}
	}
	return batch
}

var someTime = time.Date(2026, 11, 22, 3, 4, 5, 678_901_234, time.UTC)

type counter struct{ handled atomic.Int64 }

// Handle implements [core.Handler].
func (c *counter) Handle(context.Context, core.Delivery) error {
	c.handled.Add(1)
	return nil
}

// listen starts a listener with native mTLS, or one behind nginx, and returns a forwarder with a
// certificate of its own for each runtime.
func listen(
	t testing.TB, operator core.Handler, verifier core.Verifier, runtimes int, gateway bool, protocol string, opts listener.Options,
) (forwarders []core.Forwarder) {
	t.Helper()
	ca := lab.Must(testpki.NewCA("ca", testpki.Options{}))
	leaf := lab.Must(ca.Server("operator", testpki.Options{}))
	server := lab.Material(leaf, ca)
	opts.Listener = lab.Must(net.Listen("tcp", "127.0.0.1:0"))
	address := opts.Listener.Addr().String()
	peers := listener.FromTLS(keys.Roots(server), listener.PeerOptions{})
	if gateway {
		volume := testpki.NewVolume(t.TempDir())
		nginx := lab.GatewayOptions{Upstream: address}
		lab.NoError(t, volume.Write(testpki.Files(leaf, ca)))
		nginx.ClientCA, nginx.Certificate, nginx.Key = volume.Paths()
		address = lab.StartGateway(t, nginx).Addr
		peers = listener.FromXFCC(listener.ProxyAddresses(netip.MustParsePrefix("127.0.0.1/32")), keys.Roots(server), listener.PeerOptions{})
	} else {
		opts.TLS = keys.ServerTLSConfig(server)
	}
	l := lab.Must(listener.New(peers, verifier, map[core.Manager]core.Handler{manager: operator}, opts))
	lab.Run(t, "listener", l.Start)
	for n := range runtimes {
		f := lab.Must(httpmtls.NewForwarder(lab.Material(leafOf(ca, runtimeID(n)), ca), address, contract.V3,
			httpmtls.Options{Protocol: protocol}))
		t.Cleanup(func() { _ = f.Close() })
		forwarders = append(forwarders, f)
	}
	return forwarders
}

// plenty are shares of a runtime that are larger than any load.
func plenty() listener.Options {
	return listener.Options{RuntimeRate: 1e9, RuntimeBurst: 1e9, RuntimeInFlight: 1e6, MaxInFlight: 1e4}
}

// calls are the calls of Forward of several runtimes.
type calls struct {
	load

	operator   *counter
	forwarders []core.Forwarder
	batch      core.Batch
}

// newCalls also connects all runtimes.
func newCalls(b *testing.B, operator *counter, forwarders []core.Forwarder, l load) *calls {
	b.Helper()
	c := &calls{l, operator, forwarders, newBatch(l.events)}
	c.run(b, l.runtimes)
	return c
}

// overHTTP returns calls to a listener with a verifier.
func overHTTP(b *testing.B, verifier core.Verifier, protocol string, l load) *calls {
	b.Helper()
	operator := &counter{}
	return newCalls(b, operator, listen(b, operator, verifier, l.runtimes, false, protocol, plenty()), l)
}

// run makes n calls, and returns when the operator got all events.
func (c *calls) run(b *testing.B, n int) {
	b.Helper()
	want := c.operator.handled.Load() + int64(n*c.events)
	var (
		left atomic.Int64
		all  sync.WaitGroup
	)
	left.Store(int64(n))
	for _, forwarder := range c.forwarders {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if err := forwarder.Forward(b.Context(), manager, c.batch); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
	lab.Eventually(b, time.Minute, "the operator got all events", func() bool { return c.operator.handled.Load() >= want })
}

// round is a number of calls that takes some tens of milliseconds.
func (c *calls) round() int { return max(500/c.events, 4*c.runtimes) }

// cost is the time that some work took, and the processor time of the whole process.
type cost struct{ wall, processor time.Duration }

// measure adds the cost of some work.
func (c *cost) measure(work func()) {
	started := time.Now()
	before := processorTime()
	work()
	c.wall += time.Since(started)
	c.processor += processorTime() - before
}

// report adds the events per second, and the processor time of both ends for each event.
func (c *cost) report(b *testing.B, events int) {
	b.Helper()
	b.ReportMetric(float64(events)/c.wall.Seconds(), "events/s")
	b.ReportMetric(float64(c.processor.Microseconds())/float64(events), "cpu-µs/event")
}

func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
