package prometheus

import (
	"sync/atomic"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// measureOutbox makes the metrics of an outbox, which each scrape reads. All counts are of one
// moment, so they are balanced.
func (a *Agent) measureOutbox(f *factory) {
	accepted := f.sampledCounter("events_accepted_total",
		"Events offered to the outbox. Always the sum of delivered, coalesced, dropped and pending.", labelManager)
	delivered := f.sampledCounter("events_delivered_total", "Events acknowledged by the control plane.", labelManager)
	coalesced := f.sampledCounter("events_coalesced_total",
		"Events that another one with the same key stands for.", labelManager)
	dropped := f.sampledCounter("events_dropped_total", "Events given up, by reason.", labelManager, labelReason)
	pending := f.sampledGauge("events_pending", "Events that wait to be sent or acknowledged.", labelManager)
	oldest := f.sampledGauge("oldest_event_pending_seconds",
		"Age of the oldest event that waits, 0 if there is none.", labelManager)
	box, reasons := new(atomic.Pointer[outbox.Outbox]), new(vocabulary)
	a.ReadOutbox = box.Store
	f.scrape = func(metrics chan<- prom.Metric) {
		for manager, s := range stocksOf(box.Load(), f.managers, reasons) {
			metrics <- accepted(float64(s.Accepted), manager)
			metrics <- delivered(float64(s.Delivered), manager)
			metrics <- coalesced(float64(s.Coalesced), manager)
			metrics <- pending(float64(s.Pending), manager)
			metrics <- oldest(s.oldest, manager)
			for reason, n := range s.Dropped {
				metrics <- dropped(float64(n), manager, reason)
			}
		}
	}
}

// stock has the values of one label.
type stock struct {
	outbox.Counts

	oldest float64 // seconds
}

// stocksOf returns the stocks by label value. Each known manager has one, and each stock has the
// drop reasons of the outbox: PromQL does not take an absent series for zero.
func stocksOf(box *outbox.Outbox, managers *managers, reasons *vocabulary) map[string]*stock {
	all := make(map[string]*stock)
	of := func(label string) *stock {
		if all[label] == nil {
			all[label] = &stock{Counts: outbox.Counts{Dropped: map[string]int64{
				reasons.value("overflow"): 0, reasons.value("shutdown"): 0,
			}}}
		}
		return all[label]
	}
	for _, manager := range managers.values() {
		of(manager)
	}
	if box == nil {
		return all
	}
	for manager, counts := range box.Counts() {
		s := of(managers.value(manager))
		s.Accepted += counts.Accepted
		s.Delivered += counts.Delivered
		s.Coalesced += counts.Coalesced
		s.Pending += counts.Pending
		for reason, n := range counts.Dropped {
			s.Dropped[reasons.value(reason)] += n
		}
		s.oldest = max(s.oldest, box.OldestPending(manager).Seconds())
	}
	return all
}
