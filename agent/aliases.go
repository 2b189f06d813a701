package agent

import (
	"crypto/fips140"
	"math"

	prom "github.com/prometheus/client_golang/prometheus"
)

// aliases exposes the metrics of kyma-project/runtime-watcher by their names, computed from those
// of this agent. docs/platforms/migration.md has the table.
type aliases struct{ source prom.Gatherer }

// durationStep keeps the mean duration out of the notation with an exponent, which the consumers of
// this metric do not read.
const durationStep = 1e-4

func (a aliases) Describe(descs chan<- *prom.Desc) { prom.DescribeByCollect(a, descs) }

func (a aliases) Collect(metrics chan<- prom.Metric) {
	alias := func(kind prom.ValueType, name, help string, value float64) {
		metrics <- prom.MustNewConstMetric(prom.NewDesc("watcher_"+name, "Alias: "+help, nil, nil), kind, value)
	}
	sums := a.sums()
	alias(prom.CounterValue, "admission_request_total", "requests of the webhook.", sums.requests)
	alias(prom.CounterValue, "admission_request_error_total",
		"requests of the webhook that were no readable review.", sums.refusals)
	alias(prom.CounterValue, "kcp_requests_total", "events in attempts to forward them.", sums.sent)
	alias(prom.GaugeValue, "request_duration", "mean time to answer a request of the webhook, in seconds.", sums.mean())
	alias(prom.GaugeValue, "fips_mode", "FIPS 140-3 mode of the process, 0 is off, 1 is on, 2 is only.", fipsMode())

	failed := prom.NewDesc("watcher_failed_kcp_total",
		"Alias: events in failed attempts, short retries, and objects without a valid owner.",
		[]string{"error_reason"}, nil)
	// All reasons are there from the start, so that a missing metric differs from 0.
	for reason, value := range map[string]float64{
		"failed-request": sums.failed, "unknown-owner": sums.owners,
		"invalid-subresource": 0, "missing-address-or-contract": 0, "request-setup": 0,
	} {
		metrics <- prom.MustNewConstMetric(failed, prom.CounterValue, value, reason)
	}
}

func fipsMode() float64 {
	switch {
	case !fips140.Enabled():
		return 0
	case fips140.Enforced():
		return 2
	default:
		return 1
	}
}

// aliasSums are sums over the series of this agent.
type aliasSums struct{ requests, refusals, sent, failed, owners, seconds, answers float64 }

func (s *aliasSums) mean() float64 {
	if s.answers == 0 {
		return 0
	}
	return math.Ceil(s.seconds/s.answers/durationStep) * durationStep
}

func (a aliases) sums() (s aliasSums) {
	families, _ := a.source.Gather() // The scrape of the source itself reports its errors.
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := make(map[string]string, len(metric.GetLabel()))
			for _, pair := range metric.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			histogram := metric.GetHistogram()
			s.add(family.GetName(), labels, metric.GetCounter().GetValue(),
				histogram.GetSampleSum(), histogram.GetSampleCount())
		}
	}
	return s
}

// add adds one series. Requests outside of /validate/ do not count, as in the metrics that these
// stand for.
func (s *aliasSums) add(name string, labels map[string]string, value, seconds float64, answers uint64) {
	switch name {
	case "runtime_watcher_agent_admission_reviews_total":
		s.requests += value
	case "runtime_watcher_agent_admission_refusals_total":
		s.addRefusals(labels["reason"], value)
	case "runtime_watcher_agent_admission_owner_problems_total":
		s.owners += value
	case "runtime_watcher_agent_forward_events_total":
		s.addAttempts(labels["result"], value)
	case "runtime_watcher_agent_forward_retries_total":
		s.failed += value
	case "runtime_watcher_agent_admission_duration_seconds":
		s.seconds += seconds
		s.answers += float64(answers)
	}
}

func (s *aliasSums) addRefusals(reason string, value float64) {
	if reason == "unknown_path" {
		return
	}
	s.requests += value
	if reason != "manager" {
		s.refusals += value
	}
}

func (s *aliasSums) addAttempts(result string, value float64) {
	if result == "not_sent" {
		return
	}
	s.sent += value
	if result != "ok" {
		s.failed += value
	}
}
