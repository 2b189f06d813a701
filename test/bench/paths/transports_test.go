package paths_test

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// startBroker starts a NATS server that knows that many runtimes, and an operator.
func startBroker(t testing.TB, opts lab.BrokerOptions, operator core.Handler, runtimes int) *lab.Broker {
	t.Helper()
	users := []natsjetstream.User{lab.OperatorUser(manager)}
	for n := range runtimes {
		users = append(users, lab.RuntimeUser(runtimeID(n), manager))
	}
	b := lab.StartBroker(t, opts, users...)
	consume(t, b.Operator(manager), operator)
	return b
}

// connect connects runtimes, and returns their forwarders when each has sent a batch.
func connect(t testing.TB, b *lab.Broker, runtimes int, opts natsjetstream.ForwarderOptions) (over []core.Forwarder) {
	t.Helper()
	for n := range runtimes {
		over = append(over, b.Forwarder(runtimeID(n), opts))
	}
	sendFirst(t, over)
	return over
}

// sendFirst connects runtimes, and makes the stream.
func sendFirst(t testing.TB, over []core.Forwarder) {
	t.Helper()
	for _, f := range over {
		lab.Eventually(t, time.Minute, "the first batch is sent", func() bool {
			return f.Forward(t.Context(), manager, newBatch(1)) == nil
		})
	}
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
	overNATS := func(fsync bool, wait time.Duration) func(testing.TB, int, core.Handler) ([]core.Forwarder, int) {
		return func(b testing.TB, runtimes int, op core.Handler) (forwarders []core.Forwarder, pid int) {
			b.Helper()
			opts := natsjetstream.ForwarderOptions{AnswerWait: wait}
			broker := startBroker(b, lab.BrokerOptions{Sync: fsync}, op, runtimes)
			return connect(b, broker, runtimes, opts), broker.Nodes[0].Pid()
		}
	}
	return []transport{
		{"http2", func(b testing.TB, runtimes int, op core.Handler) (forwarders []core.Forwarder, pid int) {
			b.Helper()
			return listen(b, op, lab.Pinning(), runtimes, false, "h2", plenty()), 0
		}},
		{"nats", overNATS(false, 0)},
		{"nats, stored", overNATS(false, -1)},
		{"nats, fsync", overNATS(true, 0)},
	}
}

// BenchmarkTransports sends events with SAN pinning. One operation is one call of Forward.
func BenchmarkTransports(b *testing.B) {
	for _, l := range loads() {
		for _, t := range transports() {
			b.Run(fmt.Sprintf("%s/%s", l, t.name), func(b *testing.B) { t.run(b, l) })
		}
	}
}

func (t transport) run(b *testing.B, l load) {
	b.Helper()
	operator, took := &counter{}, &kit.Samples{}
	forwarders, pid := t.make(b, l.runtimes, operator)
	for n, f := range forwarders {
		forwarders[n] = &patient{f, took}
	}
	calls := newCalls(b, operator, forwarders, l)
	took.Take()
	before := broker(pid).Processor
	var all cost
	b.ResetTimer()
	all.measure(func() { calls.run(b, b.N) })
	b.StopTimer()
	latencies := took.Take()
	all.report(b, b.N*l.events)
	b.ReportMetric(float64((broker(pid).Processor-before).Microseconds())/float64(b.N*l.events), "broker-µs/event")
	b.ReportMetric(float64(latencies.At(50).Microseconds()), "p50-µs")
	b.ReportMetric(float64(latencies.At(99).Microseconds()), "p99-µs")
	if pid != 0 {
		b.ReportMetric(float64(broker(pid).Resident)/(1<<20), "broker-MiB")
	}
}

// patient forwards a batch until it is taken, and measures that.
type patient struct {
	core.Forwarder

	took *kit.Samples
}

// Forward implements [core.Forwarder].
func (p *patient) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	started := time.Now()
	for p.Forwarder.Forward(ctx, manager, batch) != nil { // There is no stream yet, or it is full.
		if ctx.Err() != nil {
			return ctx.Err()
		}
		runtime.Gosched()
	}
	p.took.Add(time.Since(started))
	return nil
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
	b := startBroker(t, lab.BrokerOptions{}, &counter{}, n)
	pid := b.Nodes[0].Pid()
	before := broker(pid).Resident
	connect(t, b, n, natsjetstream.ForwarderOptions{})
	after := broker(pid).Resident
	t.Logf("%d runtimes: %d MiB before, %d MiB after, %d KiB for each", n, before>>20, after>>20, (after-before)/int64(n)>>10)
}
