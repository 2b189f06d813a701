package prometheus

import (
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// Agent has the metrics of an agent. Its methods are hooks for the parts of an agent. They return
// at once and may be called concurrently.
type Agent struct {
	certificates
	managers *managers
	outbox   *outboxCollector
	webhook  webhookMetrics
	forward  forwardMetrics
	process  processMetrics
}

// NewAgent returns the metrics of an agent, registered with reg. It fails when reg is nil or an
// option is wrong. It fails with a [prom.AlreadyRegisteredError] and registers nothing when reg has
// such metrics.
func NewAgent(reg prom.Registerer, opts Options) (*Agent, error) {
	opts = opts.withDefaults()
	if err := check(reg, opts); err != nil {
		return nil, err
	}
	a := newAgent("agent", newManagers(opts))
	all := collectors{a.outbox, a.keyMaterial(), a.webhook.all(), a.forward.all(), a.process.all()}
	if err := all.register(reg); err != nil {
		return nil, err
	}
	return a, nil
}

func newAgent(f factory, managers *managers) *Agent {
	a := &Agent{
		certificates: newCertificates(f),
		managers:     managers,
		outbox:       newOutboxCollector(f, managers),
		webhook:      newWebhookMetrics(f),
		forward:      newForwardMetrics(f),
		process:      newProcessMetrics(f),
	}
	for _, manager := range managers.all() {
		a.forward.unknown.WithLabelValues(string(manager))
	}
	return a
}

// ReadOutbox makes each scrape read box. The last call counts.
func (a *Agent) ReadOutbox(box *outbox.Outbox) { a.outbox.outbox.Store(box) }
