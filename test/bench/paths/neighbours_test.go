package paths_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

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
			if err == nil || errors.Is(err, core.ErrForbidden) || core.Reason(err) == "too_fast" {
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
