// Package nats tests adapters/natsjetstream against real NATS servers with TLS: attacks, streams, leaf
// nodes and "agent check". The rows of test/loss kill servers, the nodes of a cluster, and operators.
// test/controlplane/chain has the configuration and the certificates of the documents.
package nats_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const manager core.Manager = "my-operator"

var gvk = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Sample"}

// sender is the runtime of the tests without an attack.
const sender core.RuntimeID = "runtime-0"

func users() []natsjetstream.User {
	return []natsjetstream.User{lab.OperatorUser(manager), lab.RuntimeUser(sender, manager)}
}

// onEach runs a test with each NATS server.
func onEach(t *testing.T, test func(t *testing.T, name, program string)) {
	t.Helper()
	t.Parallel()
	for name, program := range lab.NATSServers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, name, program)
		})
	}
}

func batchOf(source core.RuntimeID, names ...string) core.Batch {
	batch := core.Batch{Source: source, Epoch: "epoch"}
	for i, name := range names {
		batch.Events = append(batch.Events, core.Numbered{
			Sequence: uint64(i + 1), ID: fmt.Sprintf("%s-%s-%d", source, name, i),
			WatchEvent: core.WatchEvent{
				Watched: types.NamespacedName{Namespace: "default", Name: name}, WatchedGVK: gvk, Generation: 1,
			},
		})
	}
	return batch
}

// encoded is the body of a message with one object.
func encoded(source core.RuntimeID, name string) []byte {
	return lab.Must(contract.V3.Encode(new(batchOf(source, name)))).Body
}

// createStream makes the stream of a manager before a consumer does.
func createStream(t *testing.T, b *lab.Broker, m core.Manager) jetstream.Stream {
	t.Helper()
	return lab.Must(lab.Must(jetstream.New(b.Operator(m))).CreateStream(t.Context(), natsjetstream.StreamConfig(m)))
}

// taking takes deliveries, and notes them.
func taking(arrivals *lab.Arrivals) core.Handler {
	return core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		arrivals.Delivered(hook.Handled{Delivery: d, Requests: 1})
		return nil
	})
}

// of is the arrival of an object of a runtime.
func of(runtime core.RuntimeID, name string) lab.Arrival {
	return lab.Arrival{Runtime: runtime, Manager: manager, Object: name}
}

// consume runs a consumer until the test ends, or until the result is called.
func consume(t testing.TB, conn *nats.Conn, arrivals *lab.Arrivals, opts natsjetstream.Options) (stop func()) {
	t.Helper()
	opts.Peer = lab.MappedPeer
	handlers := map[core.Manager]core.Handler{manager: taking(arrivals)}
	return lab.Run(t, "consumer", lab.Must(natsjetstream.NewConsumer(conn, lab.Pinning(), handlers, opts)).Start)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answered is for forwarders that wait for the answer of the operator.
var answered = natsjetstream.ForwarderOptions{AnswerWait: lab.Patience, Timeout: lab.Patience}

// awaitMessages waits until the stream has n messages. A stream without a leader does not answer.
func awaitMessages(t testing.TB, stream jetstream.Stream, n uint64) {
	t.Helper()
	lab.Eventually(t, lab.Patience, fmt.Sprintf("the stream has %d messages", n), func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == n
	})
}
