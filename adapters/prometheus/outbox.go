package prometheus

import (
	"sync/atomic"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// outboxCollector reads an outbox at each scrape. All counts are of one moment, so they are
// balanced.
type outboxCollector struct {
	descs

	managers *managers
	reasons  vocabulary
	outbox   atomic.Pointer[outbox.Outbox]

	accepted, delivered, coalesced, dropped, pending, oldest *prom.Desc
}

func newOutboxCollector(managers *managers) *outboxCollector {
	c := &outboxCollector{descs: descs{word: "agent"}, managers: managers}
	c.accepted = c.desc("events_accepted_total",
		"Events offered to the outbox. Always the sum of delivered, coalesced, dropped and pending.",
		labelManager)
	c.delivered = c.desc("events_delivered_total", "Events acknowledged by the control plane.", labelManager)
	c.coalesced = c.desc("events_coalesced_total", "Events that another one with the same key stands for.", labelManager)
	c.dropped = c.desc("events_dropped_total", "Events given up, by reason.", labelManager, labelReason)
	c.pending = c.desc("events_pending", "Events that wait to be sent or acknowledged.", labelManager)
	c.oldest = c.desc("oldest_event_pending_seconds", "Age of the oldest event that waits, 0 if there is none.", labelManager)
	return c
}

func (c *outboxCollector) Collect(metrics chan<- prom.Metric) {
	for manager, s := range c.read() {
		metrics <- counter(c.accepted, s.Accepted, manager)
		metrics <- counter(c.delivered, s.Delivered, manager)
		metrics <- counter(c.coalesced, s.Coalesced, manager)
		metrics <- gauge(c.pending, float64(s.Pending), manager)
		metrics <- gauge(c.oldest, s.oldest, manager)
		for reason, n := range s.Dropped {
			metrics <- counter(c.dropped, n, manager, reason)
		}
	}
}

// stock has the values of one label.
type stock struct {
	outbox.Counts

	oldest float64 // seconds
}

// read returns the stocks by label value. Each known manager has one, and each stock has the drop
// reasons of the outbox: PromQL does not take an absent series for zero.
func (c *outboxCollector) read() map[string]*stock {
	all := make(map[string]*stock)
	for _, manager := range c.managers.values() {
		all[manager] = c.newStock()
	}

	box := c.outbox.Load()
	if box == nil {
		return all
	}

	for manager, counts := range box.Counts() {
		label := c.managers.value(manager)
		if all[label] == nil {
			all[label] = c.newStock()
		}

		c.add(all[label], counts)
		all[label].oldest = max(all[label].oldest, box.OldestPending(manager).Seconds())
	}

	return all
}

func (c *outboxCollector) newStock() *stock {
	return &stock{Counts: outbox.Counts{Dropped: map[string]int64{
		c.reasons.value("overflow"): 0, c.reasons.value("shutdown"): 0,
	}}}
}

func (c *outboxCollector) add(s *stock, counts outbox.Counts) {
	s.Accepted += counts.Accepted
	s.Delivered += counts.Delivered
	s.Coalesced += counts.Coalesced
	s.Pending += counts.Pending
	for reason, n := range counts.Dropped {
		s.Dropped[c.reasons.value(reason)] += n
	}
}
