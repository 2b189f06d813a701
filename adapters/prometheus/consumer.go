package prometheus

import (
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Consumer has the metrics of a consumer of messages. It converts to the hooks of
// adapters/natsjetstream. Its functions return at once and may be called concurrently.
type Consumer struct {
	// Concluded counts a message for manager by its fate, for a reason. The reason is empty when
	// every event is enqueued.
	Concluded func(manager core.Manager, fate, reason string, took time.Duration)
	// Backlog sets the backlog in the stream of a manager.
	Backlog func(manager core.Manager, messages uint64, filled float64, oldest time.Duration)
	// Redelivered counts a message that the stream delivers again.
	Redelivered func(manager core.Manager)
}

// NewConsumer returns the metrics of a consumer, registered with reg. It fails as [NewAgent] does.
func NewConsumer(reg prom.Registerer, opts Options) (c Consumer, err error) {
	err = register(reg, "consumer", opts, c.measure)
	return c, err
}

func (c *Consumer) measure(f *factory) {
	var fates, reasons vocabulary
	messages := f.counters("messages_total",
		"Messages that the consumer took, by fate and reason. A delayed one counts at each delivery.",
		labelManager, labelFate, labelReason)
	durations := f.histograms("message_duration_seconds",
		"Time to handle one delivery of a message, by fate.", requestBuckets(), labelFate)
	c.Concluded = func(manager core.Manager, fate, reason string, took time.Duration) {
		fate = fates.value(fate)
		durations.WithLabelValues(fate).Observe(took.Seconds())
		messages.WithLabelValues(f.managers.value(manager), fate, reasons.value(reason)).Inc()
	}

	backlog := f.gauges("backlog_messages", "Messages in the stream, 0 at a replica that takes none.", labelManager)
	filled := f.gauges("backlog_ratio",
		"Part of the bytes of the stream that is in use. A full stream refuses events.", labelManager)
	age := f.gauges("backlog_age_seconds", "Age of the oldest message in the stream, 0 without one.", labelManager)
	c.Backlog = func(manager core.Manager, messages uint64, part float64, oldest time.Duration) {
		name := f.managers.value(manager)
		backlog.WithLabelValues(name).Set(float64(messages))
		filled.WithLabelValues(name).Set(part)
		age.WithLabelValues(name).Set(oldest.Seconds())
	}

	redelivered := f.counters("redelivered_messages_total",
		"Deliveries of messages that the stream had delivered before.", labelManager)
	c.Redelivered = func(manager core.Manager) { redelivered.WithLabelValues(f.managers.value(manager)).Inc() }
}
