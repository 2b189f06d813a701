package prometheus

import (
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Consumer has the metrics of a consumer of messages, such as that of adapters/natsjetstream. Its
// method is a hook for it. It returns at once and may be called concurrently.
type Consumer struct {
	managers  *managers
	messages  *prom.CounterVec
	durations *prom.HistogramVec

	fates, reasons vocabulary
}

// NewConsumer returns the metrics of a consumer, registered with reg. It fails as [NewAgent] does.
func NewConsumer(reg prom.Registerer, opts Options) (*Consumer, error) {
	opts = opts.withDefaults()
	if err := check(reg, opts); err != nil {
		return nil, err
	}
	f := factory("consumer")
	c := &Consumer{
		managers: newManagers(opts),
		messages: f.counters("messages_total",
			"Messages that the consumer took, by fate and reason. A delayed one counts at each delivery.",
			labelManager, labelFate, labelReason),
		durations: f.histograms("message_duration_seconds",
			"Time to handle one delivery of a message, by fate.", requestBuckets(), labelFate),
	}
	if err := (collectors{c.messages, c.durations}).register(reg); err != nil {
		return nil, err
	}
	return c, nil
}

// Concluded counts a message for manager by its fate, for a reason. The reason is empty when every
// event is enqueued.
func (c *Consumer) Concluded(manager core.Manager, fate, reason string, took time.Duration) {
	fate = c.fates.value(fate)
	c.durations.WithLabelValues(fate).Observe(took.Seconds())
	c.messages.WithLabelValues(c.managers.value(manager), fate, c.reasons.value(reason)).Inc()
}
