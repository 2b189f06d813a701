package prometheus

import (
	"errors"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	resultOK      = "ok"
	resultPartial = "partial"
)

// forwardMetrics are those of the way to the control plane.
type forwardMetrics struct {
	durations *prom.HistogramVec
	events    *prom.CounterVec
	success   *prom.GaugeVec
	connects  *prom.CounterVec
	retries   *prom.CounterVec
	contract  *prom.GaugeVec
	unknown   *prom.CounterVec

	results, contracts *vocabulary
}

func newForwardMetrics(f factory) forwardMetrics {
	m := forwardMetrics{
		durations: f.histograms("forward_duration_seconds",
			"Time of one attempt to forward events or a heartbeat to the control plane, by result.",
			forwardBuckets(), labelResult),
		events: f.counters("forward_events_total",
			"Events in attempts to forward them, repeated ones included, by result.", labelManager, labelResult),
		success: f.gauges("forward_last_success_timestamp_seconds",
			"Time of the last attempt that was acknowledged as a whole, in Unix time.", labelManager),
		connects: f.counters("forward_connections_total",
			"Attempts to connect to the control plane, by result.", labelResult),
		retries: f.counters("forward_retries_total",
			"Short retries within an attempt to forward, by the HTTP status before; empty without an answer.", labelCode),
		contract: f.gauges("contract_in_use",
			"1 for the contract that events to the manager travel with, 0 for a former one.",
			labelManager, labelContract),
		unknown: f.counters("contract_unknown_total",
			"Attempts to forward that the control plane answers as if it does not know the contract.", labelManager),
		results: new(vocabulary), contracts: new(vocabulary),
	}
	m.durations.WithLabelValues(resultOK)
	m.connects.WithLabelValues(resultOK)
	return m
}

func (m forwardMetrics) all() collectors {
	return collectors{m.durations, m.events, m.success, m.connects, m.retries, m.contract, m.unknown}
}

func (a *Agent) attempted(manager core.Manager, events int, took time.Duration, err error) {
	label := a.managers.value(manager)
	a.forward.durations.WithLabelValues(a.forward.results.value(result(err))).Observe(took.Seconds())
	for result, n := range a.forward.byResult(events, err) {
		a.forward.events.WithLabelValues(label, result).Add(float64(n))
	}
	if err == nil {
		a.forward.success.WithLabelValues(label).SetToCurrentTime()
	}
}

// byResult splits the events of an attempt by their results.
func (m forwardMetrics) byResult(events int, err error) map[string]int {
	failed, partial := errors.AsType[core.EventErrors](err)
	switch {
	case events == 0:
		return nil
	case !partial:
		return map[string]int{m.results.value(result(err)): events}
	}
	split := map[string]int{resultOK: events}
	for i, cause := range failed {
		if i < events { // The next index stands for the heartbeat.
			split[m.results.value(core.Reason(cause))]++
			split[resultOK]--
		}
	}
	return split
}

func result(err error) string {
	if err == nil {
		return resultOK
	}
	if _, partial := errors.AsType[core.EventErrors](err); partial {
		return resultPartial
	}
	return core.Reason(err)
}

func (a *Agent) connected(err error) {
	a.forward.connects.WithLabelValues(a.forward.results.value(result(err))).Inc()
}

func (a *Agent) retried(status int) {
	after := ""
	if status != 0 {
		after = code(status)
	}
	a.forward.retries.WithLabelValues(after).Inc()
}

func (a *Agent) contractInUse(manager core.Manager, contract string) {
	choose(a.forward.contract, a.forward.contracts, contract, a.managers.value(manager))
}

func (a *Agent) contractUnknown(manager core.Manager) {
	a.forward.unknown.WithLabelValues(a.managers.value(manager)).Inc()
}

// forwardBuckets range from a machine nearby to a control plane that does not answer.
func forwardBuckets() []float64 {
	return []float64{1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10, 30}
}
