package prometheus

import (
	"sync"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// outboxCollector reads the counts of an outbox at each scrape, all at one moment: they are balanced.
type outboxCollector struct {
	descs   outboxDescs
	max     int
	reasons vocabulary

	mu     sync.Mutex
	counts func() map[core.Manager]outbox.Counts
	known  map[core.Manager]struct{} // with series of their own
}

type outboxDescs struct{ accepted, delivered, coalesced, dropped, pending *prom.Desc }

func newOutboxCollector(f factory, opts Options) *outboxCollector {
	c := &outboxCollector{
		max:   opts.MaxManagers,
		known: make(map[core.Manager]struct{}),
		descs: outboxDescs{
			accepted: f.desc("events_accepted_total",
				"Events offered to the outbox. Always the sum of delivered, coalesced, dropped and pending.", labelManager),
			delivered: f.desc("events_delivered_total", "Events acknowledged by the control plane.", labelManager),
			coalesced: f.desc("events_coalesced_total", "Events represented by another one with the same key.", labelManager),
			dropped:   f.desc("events_dropped_total", "Events given up, by reason.", labelManager, labelReason),
			pending:   f.desc("events_pending", "Events waiting to be sent or acknowledged.", labelManager),
		},
	}

	for _, manager := range opts.Managers {
		c.known[manager] = struct{}{}
	}

	return c
}

// Describe implements [prom.Collector].
func (c *outboxCollector) Describe(descs chan<- *prom.Desc) {
	d := c.descs
	for _, desc := range []*prom.Desc{d.accepted, d.delivered, d.coalesced, d.dropped, d.pending} {
		descs <- desc
	}
}

// Collect implements [prom.Collector].
func (c *outboxCollector) Collect(metrics chan<- prom.Metric) {
	for manager, counts := range c.read() {
		metrics <- counter(c.descs.accepted, counts.Accepted, manager)
		metrics <- counter(c.descs.delivered, counts.Delivered, manager)
		metrics <- counter(c.descs.coalesced, counts.Coalesced, manager)
		metrics <- prom.MustNewConstMetric(c.descs.pending, prom.GaugeValue, float64(counts.Pending), manager)

		countersBy(metrics, c.descs.dropped, counts.Dropped, manager)
	}
}

// read returns the counts by label value. Every manager has the drop reasons of the outbox, at zero if
// need be: a sum over series that do not exist is no zero in PromQL.
func (c *outboxCollector) read() map[string]outbox.Counts {
	c.mu.Lock()
	defer c.mu.Unlock()

	var current map[core.Manager]outbox.Counts
	if c.counts != nil {
		current = c.counts()
	}

	all := make(map[string]outbox.Counts, len(current))
	for manager := range c.known {
		all[string(manager)] = c.zero()
	}

	for manager, counts := range current {
		label := c.label(manager)
		if _, ok := all[label]; !ok {
			all[label] = c.zero()
		}

		all[label] = c.sum(all[label], counts)
	}

	return all
}

func (c *outboxCollector) zero() outbox.Counts {
	return outbox.Counts{Dropped: map[string]int64{
		c.reasons.value(outbox.ReasonOverflow): 0, c.reasons.value(outbox.ReasonShutdown): 0,
	}}
}

func (c *outboxCollector) sum(a, b outbox.Counts) outbox.Counts {
	for reason, n := range b.Dropped {
		a.Dropped[c.reasons.value(reason)] += n
	}

	return outbox.Counts{
		Accepted: a.Accepted + b.Accepted, Delivered: a.Delivered + b.Delivered, Coalesced: a.Coalesced + b.Coalesced,
		Dropped: a.Dropped, Pending: a.Pending + b.Pending,
	}
}

// label returns the manager, or [Other] for managers beyond the bound.
func (c *outboxCollector) label(manager core.Manager) string {
	if _, ok := c.known[manager]; ok {
		return string(manager)
	}

	if manager == outbox.Others || len(c.known) >= c.max || !validManager(manager) {
		return Other
	}

	c.known[manager] = struct{}{}

	return string(manager)
}
