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

type consumer struct {
	managers              *managers
	messages, redelivered *prom.CounterVec
	durations             *prom.HistogramVec
	backlog, filled, age  *prom.GaugeVec

	fates, reasons vocabulary
}

// NewConsumer returns the metrics of a consumer, registered with reg. It fails as [NewAgent] does.
func NewConsumer(reg prom.Registerer, opts Options) (Consumer, error) {
	opts = opts.withDefaults()
	if err := check(reg, opts); err != nil {
		return Consumer{}, err
	}
	f := factory("consumer")
	c := &consumer{
		managers: newManagers(opts),
		messages: f.counters("messages_total",
			"Messages that the consumer took, by fate and reason. A delayed one counts at each delivery.",
			labelManager, labelFate, labelReason),
		durations: f.histograms("message_duration_seconds",
			"Time to handle one delivery of a message, by fate.", requestBuckets(), labelFate),
		redelivered: f.counters("redelivered_messages_total",
			"Deliveries of messages that the stream had delivered before.", labelManager),
		backlog: f.gauges("backlog_messages",
			"Messages in the stream, 0 at a replica that takes none.", labelManager),
		filled: f.gauges("backlog_ratio",
			"Part of the bytes of the stream that is in use. A full stream refuses events.", labelManager),
		age: f.gauges("backlog_age_seconds",
			"Age of the oldest message in the stream, 0 without one.", labelManager),
	}
	if err := (collectors{c.messages, c.durations, c.redelivered, c.backlog, c.filled, c.age}).register(reg); err != nil {
		return Consumer{}, err
	}
	return Consumer{Concluded: c.concluded, Backlog: c.setBacklog, Redelivered: c.countRedelivered}, nil
}

func (c *consumer) concluded(manager core.Manager, fate, reason string, took time.Duration) {
	fate = c.fates.value(fate)
	c.durations.WithLabelValues(fate).Observe(took.Seconds())
	c.messages.WithLabelValues(c.managers.value(manager), fate, c.reasons.value(reason)).Inc()
}

func (c *consumer) setBacklog(manager core.Manager, messages uint64, filled float64, oldest time.Duration) {
	name := c.managers.value(manager)
	c.backlog.WithLabelValues(name).Set(float64(messages))
	c.filled.WithLabelValues(name).Set(filled)
	c.age.WithLabelValues(name).Set(oldest.Seconds())
}

func (c *consumer) countRedelivered(manager core.Manager) {
	c.redelivered.WithLabelValues(c.managers.value(manager)).Inc()
}
