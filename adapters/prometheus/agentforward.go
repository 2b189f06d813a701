package prometheus

import (
	"errors"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	resultOK      = "ok"
	resultPartial = "partial"
)

func (a *Agent) measureForwarding(f *factory) {
	var results, contracts vocabulary
	a.measureAttempts(f, &results)
	connects := f.counters("forward_connections_total",
		"Attempts to connect to the control plane, by result.", labelResult)
	connects.WithLabelValues(resultOK)
	a.Connected = func(err error) { connects.WithLabelValues(results.value(result(err))).Inc() }

	retries := f.counters("forward_retries_total",
		"Short retries within an attempt to forward, by the HTTP status before; empty without an answer.", labelCode)
	a.Retried = func(status int) {
		after := ""
		if status != 0 {
			after = code(status)
		}
		retries.WithLabelValues(after).Inc()
	}

	inUse := f.gauges("contract_in_use",
		"1 for the contract that events to the manager travel with, 0 for a former one.", labelManager, labelContract)
	a.ContractInUse = func(manager core.Manager, contract string) {
		choose(inUse, &contracts, contract, f.managers.value(manager))
	}

	unknown := f.counters("contract_unknown_total",
		"Attempts to forward that the control plane answers as if it does not know the contract.", labelManager)
	for _, manager := range f.managers.values() {
		unknown.WithLabelValues(manager)
	}
	a.ContractUnknown = func(manager core.Manager) { unknown.WithLabelValues(f.managers.value(manager)).Inc() }
}

func (a *Agent) measureAttempts(f *factory, results *vocabulary) {
	durations := f.histograms("forward_duration_seconds",
		"Time of one attempt to forward events or a heartbeat to the control plane, by result.",
		forwardBuckets(), labelResult)
	durations.WithLabelValues(resultOK)
	byResult := f.counters("forward_events_total",
		"Events in attempts to forward them, repeated ones included, by result.", labelManager, labelResult)
	success := f.gauges("forward_last_success_timestamp_seconds",
		"Time of the last attempt that was acknowledged as a whole, in Unix time.", labelManager)
	a.Attempted = func(manager core.Manager, events int, took time.Duration, err error) {
		label := f.managers.value(manager)
		durations.WithLabelValues(results.value(result(err))).Observe(took.Seconds())
		for result, n := range split(events, err, results) {
			byResult.WithLabelValues(label, result).Add(float64(n))
		}
		if err == nil {
			success.WithLabelValues(label).SetToCurrentTime()
		}
	}
}

func split(events int, err error, results *vocabulary) map[string]int {
	failed, partial := errors.AsType[core.EventErrors](err)
	switch {
	case events == 0:
		return nil
	case !partial:
		return map[string]int{results.value(result(err)): events}
	}
	split := map[string]int{resultOK: events}
	for i, cause := range failed {
		if i < events { // The next index stands for the heartbeat.
			split[results.value(core.Reason(cause))]++
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

// forwardBuckets range from a machine nearby to a control plane that does not answer.
func forwardBuckets() []float64 {
	return []float64{1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10, 30}
}
