package nats_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
)

// TestMessagesAreCounted counts an accepted and a malformed message by the hook of a consumer.
func TestMessagesAreCounted(t *testing.T) {
	t.Parallel()
	b := newBroker(t, embedded(t), 1, operatorUser(manager), runtimeUser(attacker, manager))
	registry := prom.NewPedanticRegistry()
	measured := must(prometheus.NewConsumer(registry, prometheus.Options{}))
	consume(t, b.operator(manager), newOperator(),
		natsjetstream.Options{Hooks: natsjetstream.Hooks{Concluded: measured.Concluded}})
	runtime := b.forwarder(attacker, natsjetstream.ForwarderOptions{AnswerWait: patience})
	eventually(t, "the batch is sent", func() bool {
		return runtime.Forward(t.Context(), manager, batchOf(attacker, "object")) == nil
	})
	conn := must(b.dial(b.certificate(attacker), nats.CustomInboxPrefix(natsjetstream.InboxPrefix(attacker))))
	t.Cleanup(conn.Close)
	must(must(jetstream.New(conn)).Publish(t.Context(), natsjetstream.Subject(manager, attacker), []byte("no JSON")))
	eventually(t, "two fates are counted", func() bool {
		return must(testutil.GatherAndCount(registry, "runtime_watcher_consumer_messages_total")) == 2
	})
	for fate, reason := range map[string]string{"enqueued": "", "terminated": "malformed"} {
		if got := count(t, registry, fate, reason); got != 1 {
			t.Errorf("%v messages are %s %q, want 1", got, fate, reason)
		}
	}
}

// count returns the number of messages with a fate, for a reason.
func count(t *testing.T, registry *prom.Registry, fate, reason string) (n float64) {
	t.Helper()
	for _, family := range must(registry.Gather()) {
		for _, series := range family.GetMetric() {
			values := map[string]string{}
			for _, pair := range series.GetLabel() {
				values[pair.GetName()] = pair.GetValue()
			}
			if values["fate"] == fate && values["reason"] == reason {
				n += series.GetCounter().GetValue()
			}
		}
	}
	return n
}
