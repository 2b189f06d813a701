// Package nats tests adapters/natsjetstream against real NATS servers with TLS: attacks, streams, leaf
// nodes and "agent check". The rows of test/loss kill servers, the nodes of a cluster, and operators.
// test/controlplane/chain has the configuration and the certificates of the documents.
package nats_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const manager core.Manager = "my-operator"

var gvk = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Sample"}

// taking takes deliveries, and notes them.
func taking(arrivals *lab.Arrivals) core.Handler {
	return core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		arrivals.Delivered(d, 1, nil)
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

// patience is for a busy machine.
const patience = 2 * time.Minute

// answered is for forwarders that wait for the answer of the operator.
var answered = natsjetstream.ForwarderOptions{AnswerWait: patience, Timeout: patience}

// awaitMessages waits until the stream has n messages. A stream without a leader does not answer.
func awaitMessages(t testing.TB, stream jetstream.Stream, n uint64) {
	t.Helper()
	lab.Eventually(t, patience, fmt.Sprintf("the stream has %d messages", n), func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == n
	})
}
