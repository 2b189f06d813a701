// Package nats measures NATS JetStream beside HTTP.
package nats

import (
	"context"
	"flag"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const manager core.Manager = "my-operator"

func runtimeNumber(n int) core.RuntimeID { return core.RuntimeID(fmt.Sprintf("runtime-%d", n)) }

func users(runtimes int) []natsjetstream.User {
	all := []natsjetstream.User{lab.OperatorUser(manager)}
	for n := range runtimes {
		all = append(all, lab.RuntimeUser(runtimeNumber(n), manager))
	}
	return all
}

func batchOf(source core.RuntimeID, names ...string) core.Batch {
	events := make([]core.WatchEvent, len(names))
	for i, name := range names {
		events[i] = core.WatchEvent{
			Watched:    types.NamespacedName{Namespace: "default", Name: name},
			WatchedGVK: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Sample"}, Generation: 1,
		}
	}
	batch := core.NewBatch(events...)
	batch.Source, batch.Epoch = source, "epoch"
	return contract.Claim(batch, source)
}

// pinning is the verifier of production. The domains are those of a control plane.
func pinning() core.Verifier {
	return listener.SANPinning(listener.DomainsFunc(
		func(_ context.Context, runtime core.RuntimeID, _ *core.WatchEvent) (string, error) {
			return lab.RuntimeDomain(runtime), nil
		}))
}

func consume(t testing.TB, conn *nats.Conn, handler core.Handler) {
	t.Helper()
	consumer := lab.Must(natsjetstream.NewConsumer(conn, pinning(), map[core.Manager]core.Handler{manager: handler},
		natsjetstream.Options{Peer: lab.MappedPeer}))
	lab.Run(t, "consumer", consumer.Start)
}

// load is the shape of a benchmark: each runtime has one call of Forward at a time, with that many
// events.
type load struct{ runtimes, events int }

func (l load) String() string { return fmt.Sprintf("events=%d/runtimes=%d", l.events, l.runtimes) }

// transport makes the forwarders of runtimes to an operator. The pid is that of the server between
// them, 0 for none.
type transport struct {
	name string
	make func(b testing.TB, runtimes int, op core.Handler) (forwarders []core.Forwarder, pid int)
}

func transports() []transport {
	answered, stored := natsjetstream.ForwarderOptions{}, natsjetstream.ForwarderOptions{AnswerWait: -1}
	return []transport{
		{"http2", overHTTP},
		{"nats", overNATS(false, answered)},
		{"nats, stored", overNATS(false, stored)},
		{"nats, fsync", overNATS(true, answered)},
	}
}

// BenchmarkTransports sends events with SAN pinning over TLS. One operation is one call of Forward.
// Operator and runtimes are in one process, the NATS server is another.
func BenchmarkTransports(b *testing.B) {
	for _, l := range []load{{runtimes: 4, events: 300}, {runtimes: 16, events: 1}, {runtimes: 1, events: 1}} {
		for _, t := range transports() {
			b.Run(fmt.Sprintf("%s/%s", l, t.name), func(b *testing.B) { t.run(b, l) })
		}
	}
}

func (t transport) run(b *testing.B, l load) {
	b.Helper()
	op := &counter{}
	forwarders, pid := t.make(b, l.runtimes, op)
	names := make([]string, l.events)
	for i := range names {
		names[i] = fmt.Sprintf("object-%d", i)
	}
	for n, f := range forwarders { // Connects, and makes the stream.
		lab.Eventually(b, time.Minute, "the first batch is sent", func() bool {
			return f.Forward(b.Context(), manager, batchOf(runtimeNumber(n), names...)) == nil
		})
	}
	lab.Eventually(b, time.Minute, "the first batches are handled", func() bool { return op.handled.Load() >= int64(l.runtimes*l.events) })
	op.handled.Store(0)
	var left atomic.Int64
	left.Store(int64(b.N))
	took := make([][]time.Duration, l.runtimes)
	cpu, brokerCPU := processorTime(), broker(pid).Processor
	b.ResetTimer()
	began := time.Now()
	var all sync.WaitGroup
	for n, f := range forwarders {
		all.Go(func() {
			batch := batchOf(runtimeNumber(n), names...)
			for left.Add(-1) >= 0 {
				started := time.Now()
				for f.Forward(b.Context(), manager, batch) != nil { // A full stream.
					runtime.Gosched()
				}
				took[n] = append(took[n], time.Since(started))
			}
		})
	}
	all.Wait()
	lab.Eventually(b, time.Minute, "all events are handled", func() bool { return op.handled.Load() >= int64(b.N*l.events) })
	wall := time.Since(began)
	b.StopTimer()
	events := float64(b.N * l.events)
	latencies := kit.Sorted(slices.Concat(took...))
	b.ReportMetric(events/wall.Seconds(), "events/s")
	b.ReportMetric(float64((processorTime()-cpu).Microseconds())/events, "cpu-µs/event")
	b.ReportMetric(float64((broker(pid).Processor-brokerCPU).Microseconds())/events, "broker-µs/event")
	b.ReportMetric(float64(latencies.At(50).Microseconds()), "p50-µs")
	b.ReportMetric(float64(latencies.At(99).Microseconds()), "p99-µs")
	if pid != 0 {
		b.ReportMetric(float64(broker(pid).Resident)/(1<<20), "broker-MiB")
	}
}

// counter counts events.
type counter struct{ handled atomic.Int64 }

func (c *counter) Handle(context.Context, core.Delivery) error {
	c.handled.Add(1)
	return nil
}

func overNATS(
	fsync bool, opts natsjetstream.ForwarderOptions,
) func(b testing.TB, runtimes int, op core.Handler) (forwarders []core.Forwarder, pid int) {
	return func(b testing.TB, runtimes int, op core.Handler) (forwarders []core.Forwarder, pid int) {
		b.Helper()
		broker := lab.StartBroker(b, lab.BrokerOptions{Sync: fsync}, users(runtimes)...)
		consume(b, broker.Operator(manager), op)
		for n := range runtimes {
			forwarders = append(forwarders, broker.Forwarder(runtimeNumber(n), opts))
		}
		return forwarders, broker.Nodes[0].Pid()
	}
}

func overHTTP(b testing.TB, runtimes int, op core.Handler) (forwarders []core.Forwarder, pid int) {
	b.Helper()
	// The shares of a runtime are larger than the load.
	return listenTo(b, runtimes, op, listener.Options{RuntimeRate: 1e9, RuntimeBurst: 1e9}), 0
}

func listenTo(b testing.TB, runtimes int, op core.Handler, opts listener.Options) (forwarders []core.Forwarder) {
	b.Helper()
	ca := lab.Must(testpki.NewCA("ca", testpki.Options{}))
	server := kit.Material(lab.Must(ca.Server("operator", testpki.Options{})), ca)
	socket := lab.Must(net.Listen("tcp", "127.0.0.1:0"))
	opts.Listener, opts.TLS = socket, keys.ServerTLSConfig(server)
	l := lab.Must(listener.New(listener.FromTLSWithRoots(keys.Roots(server), listener.PeerOptions{}), pinning(),
		map[core.Manager]core.Handler{manager: op}, opts))
	lab.Run(b, "listener", l.Start)
	for n := range runtimes {
		id := runtimeNumber(n)
		leaf := lab.Must(ca.Client(string(id), testpki.Options{DNSNames: []string{lab.RuntimeDomain(id)}}))
		f := lab.Must(httpmtls.NewForwarder(kit.Material(leaf, ca), socket.Addr().String(), contract.V3, httpmtls.Options{}))
		b.Cleanup(func() { _ = f.Close() })
		forwarders = append(forwarders, f)
	}
	return forwarders
}

func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// broker is the use of resources of the server, none without one.
func broker(pid int) (u kit.Usage) {
	if pid == 0 {
		return u
	}
	return lab.Must(kit.UsageOf(pid))
}

var connections = flag.Int("connections", 50, "runtimes that TestBrokerMemory connects")

// TestBrokerMemory measures the memory of the server for each connected runtime, with its user in
// the configuration, and one batch sent.
func TestBrokerMemory(t *testing.T) {
	n := *connections
	b := lab.StartBroker(t, lab.BrokerOptions{}, users(n)...)
	consume(t, b.Operator(manager), &counter{})
	pid := b.Nodes[0].Pid()
	before := broker(pid).Resident
	for i := range n {
		f := b.Forwarder(runtimeNumber(i), natsjetstream.ForwarderOptions{})
		lab.Eventually(t, time.Minute, "the batch is sent", func() bool {
			return f.Forward(t.Context(), manager, batchOf(runtimeNumber(i), "object")) == nil
		})
	}
	after := broker(pid).Resident
	t.Logf("%d runtimes: %d MiB before, %d MiB after, %d KiB for each", n, before>>20, after>>20, (after-before)/int64(n)>>10)
}
