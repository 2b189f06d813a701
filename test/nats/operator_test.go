// Package nats tests adapters/natsjetstream against real NATS servers with TLS: attacks, streams, leaf
// nodes and "agent check". The rows of test/loss kill servers, the nodes of a cluster, and operators.
// test/controlplane/chain has the configuration and the certificates of the documents.
package nats_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const manager core.Manager = "my-operator"

var gvk = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Sample"}

// operator counts deliveries by object.
type operator struct {
	mu sync.Mutex
	// seen has the newest generation of each object, and resyncs their number by runtime.
	seen    map[object]int64
	resyncs map[core.RuntimeID]int
	events  int
}

type object struct {
	runtime core.RuntimeID
	name    string
}

func newOperator() *operator {
	return &operator{seen: map[object]int64{}, resyncs: map[core.RuntimeID]int{}}
}

// Handle implements [core.Handler].
func (o *operator) Handle(_ context.Context, d core.Delivery) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d.Event.Resync {
		o.resyncs[d.Runtime]++
		return nil
	}
	o.events++
	key := object{d.Runtime, d.Event.Watched.Name}
	o.seen[key] = max(o.seen[key], d.Event.Generation)
	return nil
}

func (o *operator) generation(of object) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen[of]
}

func (o *operator) handled() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.events
}

func (o *operator) resynced(runtime core.RuntimeID) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.resyncs[runtime]
}

func (o *operator) runtimes() (all []core.RuntimeID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for of := range o.seen {
		all = append(all, of.runtime)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// pinning is the verifier of production. The domains are those of a control plane.
func pinning() core.Verifier {
	return listener.SANPinning(listener.DomainsFunc(
		func(_ context.Context, runtime core.RuntimeID, _ *core.WatchEvent) (string, error) {
			return lab.RuntimeDomain(runtime), nil
		}))
}

// consume runs a consumer until the test ends, or until the result is called.
func consume(t testing.TB, conn *nats.Conn, handler core.Handler, opts natsjetstream.Options) (stop func()) {
	t.Helper()
	opts.Peer = lab.MappedPeer
	return runConsumer(t, lab.Must(natsjetstream.NewConsumer(conn, pinning(), map[core.Manager]core.Handler{manager: handler}, opts)))
}

func runConsumer(t testing.TB, c *natsjetstream.Consumer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		// Some tests cut an operator off by closing its connection.
		if err := <-done; err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			t.Errorf("Start = %v, want nil", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// broker is one NATS server, or a cluster of several.
type broker struct {
	*lab.Broker

	t testing.TB
}

func newBroker(t testing.TB, opts lab.BrokerOptions, users ...natsjetstream.User) *broker {
	t.Helper()
	return &broker{lab.StartBroker(t, opts, users...), t}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is for a busy machine.
const patience = 2 * time.Minute

// answered is for forwarders that wait for the answer of the operator.
var answered = natsjetstream.ForwarderOptions{AnswerWait: patience, Timeout: patience}

// awaitMessages waits until the stream has n messages. A stream without a leader does not answer.
func awaitMessages(t testing.TB, stream jetstream.Stream, n uint64) {
	t.Helper()
	eventually(t, fmt.Sprintf("the stream has %d messages", n), func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == n
	})
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	lab.Eventually(t, patience, what, done)
}
