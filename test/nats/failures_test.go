package nats_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// agent is the outbox of a runtime, and the newest generation of each of its objects.
type agent struct {
	runtime core.RuntimeID
	outbox  *outbox.Outbox
	written map[string]int64
}

// startAgents runs the outboxes of runtimes. Its result stops them and returns their counts.
func (b *broker) startAgents(runtimes int, opts natsjetstream.ForwarderOptions) (agents []*agent, stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for n := range runtimes {
		id := runtimeNumber(n)
		box := lab.Must(outbox.New(b.Forwarder(id, opts), outbox.Options{
			Epoch: string(id) + "-epoch", Settle: -1, Resend: []time.Duration{}, ResendResync: -1, MaxBatch: 500,
			MinBackoff: 50 * time.Millisecond, MaxBackoff: time.Second, Managers: []core.Manager{manager},
			HeartbeatInterval: time.Second,
		}))
		running.Go(func() { _ = box.Start(ctx) })
		agents = append(agents, &agent{runtime: id, outbox: box, written: map[string]int64{}})
	}
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	b.t.Cleanup(stop)
	return agents, stop
}

func runtimeNumber(n int) core.RuntimeID { return core.RuntimeID(fmt.Sprintf("runtime-%d", n)) }

func users(runtimes int) []natsjetstream.User {
	all := []natsjetstream.User{lab.OperatorUser(manager)}
	for n := range runtimes {
		all = append(all, lab.RuntimeUser(runtimeNumber(n), manager))
	}
	return all
}

// write changes an object.
func (a *agent) write(name string) {
	a.written[name]++
	a.outbox.Accept(manager, core.WatchEvent{
		Watched: types.NamespacedName{Namespace: "default", Name: name}, WatchedGVK: gvk,
		Operation: core.OperationUpdate, Field: core.FieldSpec, Generation: a.written[name],
	})
}

// writeAll writes at the pace of an interval while faults runs, and at least so many times. Half of
// the objects are written once, so that no later write replaces a lost one.
func writeAll(t *testing.T, agents []*agent, writes int, interval time.Duration, faults func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		faults()
	}()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for i := 0; i < writes || !closed(done); i++ {
		<-tick.C
		name := fmt.Sprintf("once-%d", i)
		if i/len(agents)%2 == 0 {
			name = fmt.Sprintf("object-%d", i%97)
		}
		agents[i%len(agents)].write(name)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// nothingLost fails the test unless the operator sees the last write of each object. A resync does
// not count, because the outboxes never overflow.
func nothingLost(t *testing.T, agents []*agent, op *operator) {
	t.Helper()
	began := time.Now()
	objects := 0
	for _, a := range agents {
		for _, name := range slices.Sorted(maps.Keys(a.written)) {
			objects++
			eventually(t, fmt.Sprintf("the last write of %s of %s arrived", name, a.runtime), func() bool {
				return op.generation(object{a.runtime, name}) == a.written[name]
			})
		}
	}
	for _, a := range agents {
		eventually(t, "the outbox of "+string(a.runtime)+" is empty", func() bool {
			return a.outbox.Counts()[manager].Pending == 0
		})
		if counts := a.outbox.Counts()[manager]; len(counts.Dropped) > 0 {
			t.Errorf("%s dropped %v, want none", a.runtime, counts.Dropped)
		}
	}
	t.Logf("0 of %d objects lost, %d deliveries, the last one %v after the last write", objects, op.handled(), time.Since(began))
}

func (b *broker) awaitHandled(op *operator, more int) {
	b.t.Helper()
	from := op.handled()
	eventually(b.t, "the operator handles further events", func() bool { return op.handled() >= from+more/10 })
}

// TestClusterLosesNodes kills one node of three after the other.
func TestClusterLosesNodes(t *testing.T) {
	t.Parallel()
	for name, p := range lab.NATSServers(t) {
		t.Run(name, func(t *testing.T) {
			const runtimes, nodes = 4, 3
			b := newBroker(t, lab.BrokerOptions{Program: p, Nodes: nodes}, users(runtimes)...)
			op := newOperator()
			replicated := func(m core.Manager) jetstream.StreamConfig {
				config := natsjetstream.StreamConfig(m)
				config.Replicas = nodes
				return config
			}
			consume(t, b.Operator(manager), op, natsjetstream.Options{Stream: replicated})
			agents, _ := b.startAgents(runtimes, natsjetstream.ForwarderOptions{Timeout: 2 * time.Second})
			writeAll(t, agents, 1000, time.Millisecond, func() {
				for _, n := range b.Nodes {
					b.awaitHandled(op, 100)
					n.Kill()
					b.awaitHandled(op, 100)
					n.Launch()
					n.Await()
				}
			})
			nothingLost(t, agents, op)
		})
	}
}

// TestRepeatedAttemptIsStoredOnce stops the server after it has a message, so that the result is
// unknown to the forwarder.
func TestRepeatedAttemptIsStoredOnce(t *testing.T) {
	t.Parallel()
	for name, p := range lab.NATSServers(t) {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t, lab.BrokerOptions{Program: p}, users(1)...)
			stream := lab.Must(lab.Must(jetstream.New(b.Operator(manager))).CreateStream(t.Context(), natsjetstream.StreamConfig(manager)))
			f := b.Forwarder(runtimeNumber(0), natsjetstream.ForwarderOptions{AnswerWait: -1})
			batch := batchOf(runtimeNumber(0), "object")
			b.Nodes[0].Freeze()
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if err := f.Forward(ctx, manager, batch); err == nil {
				t.Error("Forward to a server that stands still = nil")
			}
			b.Nodes[0].Thaw()
			if err := f.Forward(t.Context(), manager, batch); err != nil {
				t.Errorf("the second attempt: Forward = %v", err)
			}
			if info := lab.Must(stream.Info(t.Context())); info.State.Msgs != 1 {
				t.Errorf("the stream has %d messages of one batch, want 1", info.State.Msgs)
			}
		})
	}
}

// TestLostMessagesLeadToResync lets stored messages expire, because an administrator of NATS gave the
// stream a maximum age. The fleet misses their numbers.
func TestLostMessagesLeadToResync(t *testing.T) {
	t.Parallel()
	b := newBroker(t, lab.BrokerOptions{}, append(users(1), natsjetstream.User{
		Name: "admin.example.com", Publish: []string{">"}, Subscribe: []string{">"},
	})...)
	op, watched := newOperator(), newFleet()
	conn := b.Operator(manager)
	stop := consume(t, conn, op, natsjetstream.Options{Fleet: watched})
	agents, _ := b.startAgents(1, natsjetstream.ForwarderOptions{AnswerWait: -1})
	agents[0].write("first")
	b.awaitHandled(op, 10)
	stop()
	agents[0].write("expired")
	admin := lab.Must(b.Dial(lab.Must(b.CA.Client("admin", testpki.Options{DNSNames: []string{"admin.example.com"}}))))
	defer admin.Close()
	js := lab.Must(jetstream.New(admin))
	config := natsjetstream.StreamConfig(manager)
	stream := lab.Must(js.Stream(t.Context(), config.Name))
	eventually(t, "the stream has the message", func() bool {
		return lab.Must(stream.Info(t.Context())).State.Msgs > 0 && agents[0].outbox.Counts()[manager].Pending == 0
	})
	expiring := config
	expiring.MaxAge, expiring.Duplicates = 100*time.Millisecond, 100*time.Millisecond
	lab.Must(js.UpdateStream(t.Context(), expiring))
	eventually(t, "the stream is empty", func() bool { return lab.Must(stream.Info(t.Context())).State.Msgs == 0 })
	lab.Must(js.UpdateStream(t.Context(), config))
	consume(t, b.Operator(manager), op, natsjetstream.Options{Fleet: watched})
	resyncs := op.resynced(runtimeNumber(0))
	eventually(t, "the operator gets a resync", func() bool { return op.resynced(runtimeNumber(0)) > resyncs })
}
