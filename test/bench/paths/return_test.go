package paths_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

var (
	waiting    = flag.Int("waiting", 200, "runtimes with stored batches in TestReturn")
	batches    = flag.Int("batches", 5, "stored batches of each runtime in TestReturn")
	heartbeats = flag.Int("heartbeats", 1, "stored heartbeats of each runtime in TestReturn: 1, or as many as older agents store")
)

// TestReturn measures the time until an operator that was away has the newest event of each runtime.
// One client stores the backlog of all runtimes, between their heartbeats.
func TestReturn(t *testing.T) {
	b := lab.StartBroker(t, lab.BrokerOptions{}, lab.OperatorUser(manager),
		natsjetstream.User{Name: "all.example.com", Publish: []string{"watch.>"}, Subscribe: []string{"_INBOX.>"}})
	operator, config := b.Operator(manager), natsjetstream.StreamConfig(manager)
	lab.NoError(t, natsjetstream.EnsureStream(t.Context(), operator, config))
	store(t, b)
	stream := lab.Must(lab.Must(jetstream.New(operator)).Stream(t.Context(), config.Name))
	state := lab.Must(stream.Info(t.Context())).State
	if want := uint64(*waiting * (*batches + *heartbeats)); state.Msgs != want {
		t.Fatalf("the stream has %d messages, want %d", state.Msgs, want)
	}
	oracle, newest := kit.NewOracle(*waiting), fmt.Sprintf("object-%d", *batches-1)
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
	for i := range max(*batches, *heartbeats) {
		for n := range *waiting {
			if i < *heartbeats {
				put(publish, n, core.Batch{Heartbeat: &core.Heartbeat{
					ID: fmt.Sprintf("heartbeat-%d", i), Number: uint64(i + 1), Interval: time.Minute, Time: time.Now(),
				}})
			}
			if i < *batches {
				batch := newBatch(1)
				batch.Events[0].Watched.Name = fmt.Sprintf("object-%d", i)
				put(publish, n, batch)
			}
		}
	}
	<-publish.PublishAsyncComplete()
}

func put(publish jetstream.JetStream, n int, batch core.Batch) {
	id := runtimeID(n)
	batch.Source, batch.Epoch = id, "epoch"
	msg := nats.NewMsg(natsjetstream.Subject(manager, id))
	msg.Data = lab.Must(contract.V3.Encode(&batch)).Body
	msg.Header.Set("Watch-Answer", natsjetstream.InboxPrefix(id)+".gone")
	lab.Must(publish.PublishMsgAsync(msg, jetstream.WithStallWait(time.Minute)))
}
