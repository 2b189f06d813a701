package nats_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
)

var (
	seed   = flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of TestChaos")
	faults = flag.Int("faults", 6, "faults of TestChaos")
)

// flaky is the verifier and the handler of an operator that fail now and then.
type flaky struct {
	*operator

	refusal atomic.Pointer[error] // of the verifier
	failing atomic.Bool           // the handler
}

var errFlaky = errors.New("the queue is broken")

// Verify implements [core.Verifier].
func (f *flaky) Verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	if err := f.refusal.Load(); err != nil {
		return *err
	}
	return pinning().Verify(ctx, peer, event)
}

// Handle implements [core.Handler].
func (f *flaky) Handle(ctx context.Context, d core.Delivery) error {
	if f.failing.Load() {
		return errFlaky
	}
	return f.operator.Handle(ctx, d)
}

// TestChaos makes faults at random, one after the other, while runtimes write. -seed repeats their
// order.
func TestChaos(t *testing.T) {
	t.Parallel()
	t.Logf("go test ./test/nats -run TestChaos -seed %d -faults %d", *seed, *faults)
	const runtimes = 4
	b := newBroker(t, embedded(t), 1, users(runtimes)...)
	op := &flaky{operator: newOperator()}
	replica := b.replica(op)
	agents, _ := b.startAgents(runtimes, natsjetstream.ForwarderOptions{
		Timeout: 2 * time.Second, AnswerWait: 300 * time.Millisecond, RefusedRetryAfter: 200 * time.Millisecond,
	})
	random := rand.New(rand.NewPCG(*seed, 0))
	refuse := func(err error) { op.refusal.Store(&err); b.pass(random); op.refusal.Store(nil) }
	kinds := []struct {
		name  string
		fault func()
	}{
		{"server killed", func() { b.nodes[0].kill(); b.pass(random); b.nodes[0].launch(); b.nodes[0].await() }},
		{"server frozen", func() { b.nodes[0].freeze(); b.pass(random); b.nodes[0].signal(syscall.SIGCONT) }},
		{"replica cut off", func() { replica(); replica = b.replica(op) }},
		{"verifier not ready", func() { refuse(core.ErrNotReady) }},
		{"verifier refuses", func() { refuse(core.ErrForbidden) }},
		{"handler fails", func() { op.failing.Store(true); b.pass(random); op.failing.Store(false) }},
	}
	writeAll(t, agents, 1000, time.Millisecond, func() {
		for range *faults {
			kind := kinds[random.IntN(len(kinds))]
			t.Log(kind.name)
			kind.fault()
			b.awaitHandled(op.operator, 100)
		}
	})
	nothingLost(t, agents, op.operator)
}

// replica runs a replica of the operator. Its result cuts the connection off.
func (b *broker) replica(op *flaky) (cut func()) {
	b.t.Helper()
	conn := b.operator(manager)
	c := must(natsjetstream.NewConsumer(conn, op, map[core.Manager]core.Handler{manager: op}, natsjetstream.Options{Peer: mapped}))
	run(b.t, c)
	return conn.Close
}

// pass lets up to 2 s pass.
func (b *broker) pass(random *rand.Rand) {
	pause(time.Duration(random.IntN(2000)) * time.Millisecond)
}
