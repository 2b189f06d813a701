package prometheus

import (
	"fmt"

	prom "github.com/prometheus/client_golang/prometheus"
)

// namespace is the first word of every metric.
const namespace = "runtime_watcher"

// collectors are registered together, so that a failed registration leaves none behind.
type collectors []prom.Collector

// Describe implements [prom.Collector].
func (c collectors) Describe(descs chan<- *prom.Desc) {
	for _, collector := range c {
		collector.Describe(descs)
	}
}

// Collect implements [prom.Collector].
func (c collectors) Collect(metrics chan<- prom.Metric) {
	for _, collector := range c {
		collector.Collect(metrics)
	}
}

func (c collectors) register(reg prom.Registerer) error {
	if err := reg.Register(c); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

// check validates the arguments of a constructor.
func check(reg prom.Registerer, opts Options) error {
	if reg == nil {
		return fmt.Errorf("%w: the registerer is nil, want one such as prometheus.NewRegistry()", errOptions)
	}
	return opts.validate()
}

// factory makes metrics with this second word in their names.
type factory string

func (f factory) desc(name, help string, labels ...string) *prom.Desc {
	return prom.NewDesc(prom.BuildFQName(namespace, string(f), name), help, labels, nil)
}

func (f factory) gauge(name, help string) prom.Gauge {
	return prom.NewGauge(prom.GaugeOpts{Namespace: namespace, Subsystem: string(f), Name: name, Help: help})
}

func (f factory) counter(name, help string) prom.Counter {
	return prom.NewCounter(prom.CounterOpts{Namespace: namespace, Subsystem: string(f), Name: name, Help: help})
}

func (f factory) gauges(name, help string, labels ...string) *prom.GaugeVec {
	return prom.NewGaugeVec(prom.GaugeOpts{Namespace: namespace, Subsystem: string(f), Name: name, Help: help}, labels)
}

func (f factory) counters(name, help string, labels ...string) *prom.CounterVec {
	return prom.NewCounterVec(prom.CounterOpts{Namespace: namespace, Subsystem: string(f), Name: name, Help: help}, labels)
}

func (f factory) histograms(name, help string, buckets []float64, labels ...string) *prom.HistogramVec {
	return prom.NewHistogramVec(prom.HistogramOpts{
		Namespace: namespace, Subsystem: string(f), Name: name, Help: help, Buckets: buckets,
	}, labels)
}

func counter(desc *prom.Desc, value int64, labels ...string) prom.Metric {
	return prom.MustNewConstMetric(desc, prom.CounterValue, float64(value), labels...)
}

func gauge(desc *prom.Desc, value float64, labels ...string) prom.Metric {
	return prom.MustNewConstMetric(desc, prom.GaugeValue, value, labels...)
}
