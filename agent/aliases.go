package agent

import (
	"crypto/fips140"
	"math"
	"slices"

	prom "github.com/prometheus/client_golang/prometheus"
)

// aliases are computed from these metrics. docs/platforms/migration.md has the table.
type aliases struct{ source prom.Gatherer }

// durationStep keeps the mean duration out of the notation with an exponent, which the consumers of
// this metric do not read.
const durationStep = 1e-4

func (a aliases) Describe(descs chan<- *prom.Desc) { prom.DescribeByCollect(a, descs) }

// Collect omits requests outside /validate/, as the aliased metrics do.
func (a aliases) Collect(metrics chan<- prom.Metric) {
	alias := func(kind prom.ValueType, name, help string, value float64) {
		metrics <- prom.MustNewConstMetric(prom.NewDesc("watcher_"+name, "Alias: "+help, nil, nil), kind, value)
	}
	sum := a.gatherSeries()
	const outside = "unknown_path"
	refusals := sum("admission_refusals_total", "reason", outside).count
	alias(prom.CounterValue, "admission_request_total", "requests of the webhook.",
		sum("admission_reviews_total", "").count+refusals)
	alias(prom.CounterValue, "admission_request_error_total",
		"requests of the webhook that were no readable review.",
		sum("admission_refusals_total", "reason", outside, "manager").count)
	alias(prom.CounterValue, "kcp_requests_total", "events in attempts to forward them.",
		sum("forward_events_total", "result", "not_sent").count)
	took := sum("admission_duration_seconds", "")
	alias(prom.GaugeValue, "request_duration", "mean time to answer a request of the webhook, in seconds.",
		math.Ceil(took.seconds/max(took.answers, 1)/durationStep)*durationStep)
	alias(prom.GaugeValue, "fips_mode", "FIPS 140-3 mode of the process, 0 is off, 1 is on, 2 is only.", fipsMode())

	failed := prom.NewDesc("watcher_failed_kcp_total",
		"Alias: events in failed attempts, short retries, and objects without a valid owner.",
		[]string{"error_reason"}, nil)
	// All reasons are there from the start, so that a missing metric differs from 0.
	for reason, value := range map[string]float64{
		"failed-request": sum("forward_events_total", "result", "not_sent", "ok").count +
			sum("forward_retries_total", "").count,
		"unknown-owner":       sum("admission_owner_problems_total", "").count,
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

type series struct{ count, seconds, answers float64 }

// gatherSeries adds up the series of a metric, without those with some values of a label.
func (a aliases) gatherSeries() func(name, label string, without ...string) series {
	families, _ := a.source.Gather() // The scrape of the source itself reports its errors.
	return func(name, label string, without ...string) (sum series) {
		for _, family := range families {
			if family.GetName() != "runtime_watcher_agent_"+name {
				continue
			}

			for _, metric := range family.GetMetric() {
				value := ""
				for _, pair := range metric.GetLabel() {
					if pair.GetName() == label {
						value = pair.GetValue()
					}
				}

				if !slices.Contains(without, value) {
					sum.count += metric.GetCounter().GetValue()
					sum.seconds += metric.GetHistogram().GetSampleSum()
					sum.answers += float64(metric.GetHistogram().GetSampleCount())
				}
			}
		}

		return sum
	}
}
