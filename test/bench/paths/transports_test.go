package paths_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
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
	operator := &counter{}
	took := &kit.Samples{}
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

var waiting = flag.Int("waiting", 200, "runtimes with stored batches in TestReturn")

// batches is the number of stored batches of each of them, beside one heartbeat.
const batches = 5

// TestReturn measures the time until an operator that was away has the newest event of each runtime.
// One client stores the backlog of all runtimes, between their heartbeats.
func TestReturn(t *testing.T) {
	b := lab.StartBroker(t, lab.BrokerOptions{}, lab.OperatorUser(manager),
		natsjetstream.User{Name: "all.example.com", Publish: []string{"watch.>"}, Subscribe: []string{"_INBOX.>"}})
	operator := b.Operator(manager)
	config := natsjetstream.StreamConfig(manager)
	lab.NoError(t, natsjetstream.EnsureStream(t.Context(), operator, config))
	store(t, b)
	stream := lab.Must(lab.Must(jetstream.New(operator)).Stream(t.Context(), config.Name))
	state := lab.Must(stream.Info(t.Context())).State
	if want := uint64(*waiting * (batches + 1)); state.Msgs != want {
		t.Fatalf("the stream has %d messages, want %d", state.Msgs, want)
	}
	oracle := kit.NewOracle(*waiting)
	newest := fmt.Sprintf("object-%d", batches-1)
	for n := range *waiting {
		oracle.Changed(n)
	}
	consume(t, operator, core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		if d.Event.Watched.Name == newest {
			oracle.Reconciled(lab.Must(kit.RuntimeNumber(string(d.Runtime))), record.Now())
		}
		return nil
	}))
	lab.Eventually(t, 10*time.Minute, "the newest event of each runtime is handled", func() bool { return oracle.Missing(record.Now()) == 0 })
	waits := oracle.Latency.Take()
	t.Logf("%d runtimes, %d messages, %d MiB: the newest event of the last one after %v",
		*waiting, state.Msgs, state.Bytes>>20, waits[len(waits)-1])
}

func store(t *testing.T, b *lab.Broker) {
	t.Helper()
	conn := lab.Must(b.Dial(lab.Must(b.CA.Client("all", testpki.Options{DNSNames: []string{"all.example.com"}}))))
	defer conn.Close()
	publish := lab.Must(jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(1000)))
	beat := core.Heartbeat{ID: "heartbeat", Number: 1, Interval: time.Minute, Time: time.Now()}
	for i := range batches {
		for n := range *waiting {
			if i == 0 {
				put(publish, n, core.Batch{Heartbeat: &beat})
			}
			batch := newBatch(1)
			batch.Events[0].Watched.Name = fmt.Sprintf("object-%d", i)
			put(publish, n, batch)
		}
	}
	<-publish.PublishAsyncComplete()
}

func put(publish jetstream.JetStream, n int, batch core.Batch) {
	id := runtimeID(n)
	batch.Source = id
	batch.Epoch = "epoch"
	msg := nats.NewMsg(natsjetstream.Subject(manager, id))
	msg.Data = lab.Must(contract.V3.Encode(&batch)).Body
	msg.Header.Set("Watch-Answer", natsjetstream.InboxPrefix(id)+".gone")
	lab.Must(publish.PublishMsgAsync(msg, jetstream.WithStallWait(time.Minute)))
}

const (
	quietRuntimes, loudRuntimes, hostileRuntimes = 16, 4, 16
	// phase is how long quiet runtimes are measured without and with neighbours, rounds times.
	phase  = 2 * time.Second
	rounds = 8
	// Each quiet runtime sends an event in each interval. Each neighbour sends a batch in each.
	quietInterval, loudInterval = 50 * time.Millisecond, 20 * time.Millisecond
	loudEvents                  = 300
)

// noises counts the batches of neighbours that were answered.
var noises atomic.Int64

// neighbour sends a batch again and again, until ctx ends.
type neighbour func(ctx context.Context, n int, batch core.Batch)

// TestNeighbours compares the latency of runtimes with a few events beside four loud ones, and beside
// sixteen with refused batches that never confirm a refusal. Phases without and with neighbours
// alternate, so that both have the same share of a noisy machine. Those without use another operator,
// because a stream keeps what neighbours sent before. It is also measured while the neighbours send to
// the other one: what they take of the processors there is no fault of an operator. HTTP is measured
// beside NATS.
//
// The number of batches of neighbours that were answered is the control of the attack.
func TestNeighbours(t *testing.T) {
	for _, kind := range []struct {
		name          string
		count, events int
		claim         core.RuntimeID
	}{{"loud", loudRuntimes, loudEvents, ""}, {"hostile", hostileRuntimes, 1, "other"}} {
		for _, transport := range []string{"h2", "http/1.1", "gateway/h2", "gateway/http/1.1", "nats"} {
			t.Run(kind.name+"/"+transport, func(t *testing.T) {
				quiet, _, server := ends(t, transport)
				noisy, noise, noisyServer := ends(t, transport)
				noises.Store(0)
				var alone, elsewhere, beside phases
				used := func() time.Duration {
					return processorTime() + broker(server).Processor + broker(noisyServer).Processor
				}
				for range rounds {
					alone.measure(t, quiet, used)
					stop := start(kind.count, func(ctx context.Context, n int) {
						batch := newBatch(kind.events)
						batch.Source = cmp.Or(kind.claim, runtimeID(n)) // That of another runtime is refused.
						noise(ctx, n, batch)
					})
					elsewhere.measure(t, quiet, used)
					beside.measure(t, noisy, used)
					stop()
				}
				t.Logf("alone %v; neighbours at another operator %v; at the same one %v; %d of their batches",
					&alone, &elsewhere, &beside, noises.Load())
				if noises.Load() < rounds*int64(kind.count) {
					t.Error("the batches of the neighbours do not arrive")
				}
			})
		}
	}
}

// ends starts an operator with the default shares. It returns the forwarders of all runtimes, and how
// a neighbour sends a batch, and the process of the NATS server.
func ends(t *testing.T, transport string) (over []core.Forwarder, noise neighbour, server int) {
	t.Helper()
	const all = quietRuntimes + hostileRuntimes
	if transport != "nats" {
		protocol, gateway := strings.CutPrefix(transport, "gateway/")
		over = listen(t, &counter{}, lab.Pinning(), all, gateway, protocol, listener.Options{})
		sendFirst(t, over)
		return over, forwarding(over), 0
	}
	b := startBroker(t, lab.BrokerOptions{}, &counter{}, all)
	over = connect(t, b, all, natsjetstream.ForwarderOptions{AnswerWait: time.Minute, Timeout: time.Minute})
	return over, publishing(b), b.Nodes[0].Pid()
}

// phases have the latencies of calls of the quiet runtimes, and the processor time of all.
type phases struct {
	took kit.Samples
	used time.Duration
}

func (p *phases) String() string {
	sorted := p.took.Take()
	return fmt.Sprintf("p50 %v, p99 %v of %d calls, %v processor time", sorted.At(50), sorted.At(99), len(sorted), p.used)
}

func (p *phases) measure(t *testing.T, over []core.Forwarder, used func() time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), phase)
	defer cancel()
	before := used()
	var all sync.WaitGroup
	for n := range quietRuntimes {
		all.Go(func() {
			periodic.Call(ctx, quietInterval, func() {
				started := time.Now()
				if err := over[n].Forward(t.Context(), manager, newBatch(1)); err != nil {
					t.Error(err)
				}
				p.took.Add(time.Since(started))
			})
		})
	}
	all.Wait()
	p.used += used() - before
}

func start(count int, noise func(ctx context.Context, n int)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for n := range count {
		all.Go(func() { noise(ctx, quietRuntimes+n) })
	}
	return func() { cancel(); all.Wait() }
}

func forwarding(over []core.Forwarder) neighbour {
	return func(ctx context.Context, n int, batch core.Batch) {
		periodic.Call(ctx, loudInterval, func() {
			err := over[n].Forward(ctx, manager, batch)
			if err == nil || errors.Is(err, core.ErrForbidden) || core.ReasonOf(err) == "too_fast" {
				noises.Add(1)
			}
		})
	}
}

// publishing stores batches in the stream. The neighbour gets all refusals, and confirms none.
func publishing(b *lab.Broker) neighbour {
	return func(ctx context.Context, n int, batch core.Batch) {
		id := runtimeID(n)
		conn := lab.Must(b.Dial(b.Certificate(id), nats.CustomInboxPrefix(natsjetstream.InboxPrefix(id))))
		defer conn.Close()
		stream := lab.Must(jetstream.New(conn))
		msg := nats.NewMsg(natsjetstream.Subject(manager, id))
		msg.Data = lab.Must(contract.V3.Encode(&batch)).Body
		msg.Header.Set("Watch-Answer", natsjetstream.InboxPrefix(id)+".deaf")
		lab.Must(conn.SubscribeSync(msg.Header.Get("Watch-Answer")))
		periodic.Call(ctx, loudInterval, func() {
			_, err := stream.PublishMsg(ctx, msg)
			var full *jetstream.APIError
			if err == nil || errors.As(err, &full) { // The stream refuses those beyond 256.
				noises.Add(1)
			}
		})
	}
}
