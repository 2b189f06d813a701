// Package nats measures NATS JetStream beside HTTP.
package nats

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const manager core.Manager = "my-operator"

func runtimeNumber(n int) core.RuntimeID { return core.RuntimeID(kit.RuntimeName(n)) }

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

func consume(t testing.TB, conn *nats.Conn, handler core.Handler) {
	t.Helper()
	consumer := lab.Must(natsjetstream.NewConsumer(conn, lab.Pinning(), map[core.Manager]core.Handler{manager: handler},
		natsjetstream.Options{Peer: lab.MappedPeer}))
	lab.Run(t, "consumer", consumer.Start)
}

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
	for _, l := range []kit.Load{{Runtimes: 4, Events: 300}, {Runtimes: 16, Events: 1}, {Runtimes: 1, Events: 1}} {
		for _, t := range transports() {
			b.Run(fmt.Sprintf("%s/%s", l, t.name), func(b *testing.B) { t.run(b, l) })
		}
	}
}

func (t transport) run(b *testing.B, l kit.Load) {
	b.Helper()
	operator, took := &kit.Counter{}, &kit.Samples{}
	forwarders, pid := t.make(b, l.Runtimes, operator)
	for n, f := range forwarders {
		forwarders[n] = &patient{f, batchOf(runtimeNumber(n), objectNames(l.Events)...), took}
	}
	calls := &kit.Calls{
		Manager: manager, Operator: operator, Forwarders: forwarders, Batch: core.Batch{Events: make([]core.Numbered, l.Events)},
	}
	calls.Run(b, l.Runtimes) // Connects, and makes the stream.
	took.Take()
	before := broker(pid).Processor
	var cost kit.Cost
	b.ResetTimer()
	cost.Measure(func() { calls.Run(b, b.N) })
	b.StopTimer()
	latencies := took.Take()
	cost.Report(b, b.N*l.Events)
	b.ReportMetric(float64((broker(pid).Processor-before).Microseconds())/float64(b.N*l.Events), "broker-µs/event")
	b.ReportMetric(float64(latencies.At(50).Microseconds()), "p50-µs")
	b.ReportMetric(float64(latencies.At(99).Microseconds()), "p99-µs")
	if pid != 0 {
		b.ReportMetric(float64(broker(pid).Resident)/(1<<20), "broker-MiB")
	}
}

func objectNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("object-%d", i)
	}
	return names
}

// patient forwards a batch of its runtime until it is taken, and measures that.
type patient struct {
	core.Forwarder

	batch core.Batch
	took  *kit.Samples
}

// Forward implements [core.Forwarder].
func (p *patient) Forward(ctx context.Context, manager core.Manager, _ core.Batch) error {
	started := time.Now()
	for p.Forwarder.Forward(ctx, manager, p.batch) != nil { // There is no stream yet, or it is full.
		if ctx.Err() != nil {
			return ctx.Err()
		}
		runtime.Gosched()
	}
	p.took.Add(time.Since(started))
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
	return kit.Listen(b, manager, op, lab.Pinning(), runtimes, false, "h2", kit.Plenty()), 0
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
	consume(t, b.Operator(manager), &kit.Counter{})
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
