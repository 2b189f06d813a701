package paths_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

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
func leafOf(ca *testpki.CA, runtime core.RuntimeID) *testpki.Leaf {
	return lab.Must(ca.Client(string(runtime), testpki.Options{DNSNames: []string{lab.RuntimeDomain(runtime)}}))
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

// counter is an operator that counts its events.
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
	address, peers := opts.Listener.Addr().String(), listener.FromTLSWithRoots(keys.Roots(server), listener.PeerOptions{})
	if gateway {
		volume, nginx := testpki.NewVolume(t.TempDir()), lab.GatewayOptions{Upstream: address}
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
	started, before := time.Now(), processorTime()
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

// processorTime is that of this process.
func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
