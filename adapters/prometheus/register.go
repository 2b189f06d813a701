package prometheus

import (
	"fmt"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// namespace is the first word of every metric.
const namespace = "runtime_watcher"

// factory makes metrics with this second word in their names. It registers them together, so that a
// failed registration leaves none behind.
type factory struct {
	word string
	made []prom.Collector
}

func (f *factory) Describe(descs chan<- *prom.Desc) {
	for _, collector := range f.made {
		collector.Describe(descs)
	}
}

func (f *factory) Collect(metrics chan<- prom.Metric) {
	for _, collector := range f.made {
		collector.Collect(metrics)
	}
}

func register(reg prom.Registerer, made prom.Collector) error {
	if err := reg.Register(made); err != nil {
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

// add adds a metric to those that are registered.
func add[C prom.Collector](f *factory, made C) C {
	f.made = append(f.made, made)
	return made
}

func (f *factory) opts(name, help string) prom.Opts {
	return prom.Opts{Namespace: namespace, Subsystem: f.word, Name: name, Help: help}
}

func (f *factory) gauge(name, help string) prom.Gauge {
	return add(f, prom.NewGauge(prom.GaugeOpts(f.opts(name, help))))
}

func (f *factory) counter(name, help string) prom.Counter {
	return add(f, prom.NewCounter(prom.CounterOpts(f.opts(name, help))))
}

func (f *factory) gauges(name, help string, labels ...string) *prom.GaugeVec {
	return add(f, prom.NewGaugeVec(prom.GaugeOpts(f.opts(name, help)), labels))
}

func (f *factory) counters(name, help string, labels ...string) *prom.CounterVec {
	return add(f, prom.NewCounterVec(prom.CounterOpts(f.opts(name, help)), labels))
}

func (f *factory) histograms(name, help string, buckets []float64, labels ...string) *prom.HistogramVec {
	return add(f, prom.NewHistogramVec(prom.HistogramOpts{
		Namespace: namespace, Subsystem: f.word, Name: name, Help: help, Buckets: buckets,
	}, labels))
}

// count returns a function that counts by a word.
func (f *factory) count(name, help, label string) func(word string) {
	counters, words := f.counters(name, help, label), new(vocabulary)
	return func(word string) { counters.WithLabelValues(words.value(word)).Inc() }
}

// countBy returns a function that counts by manager and a word.
func (f *factory) countBy(managers *managers, name, help, label string) func(manager core.Manager, word string) {
	counters, words := f.counters(name, help, labelManager, label), new(vocabulary)
	return func(manager core.Manager, word string) {
		counters.WithLabelValues(managers.value(manager), words.value(word)).Inc()
	}
}

// descs are the metrics of a collector that reads their values at each scrape.
type descs struct {
	word string
	all  []*prom.Desc
}

func (d *descs) desc(name, help string, labels ...string) *prom.Desc {
	desc := prom.NewDesc(prom.BuildFQName(namespace, d.word, name), help, labels, nil)
	d.all = append(d.all, desc)
	return desc
}

func (d *descs) Describe(descs chan<- *prom.Desc) {
	for _, desc := range d.all {
		descs <- desc
	}
}

func counter(desc *prom.Desc, value int64, labels ...string) prom.Metric {
	return prom.MustNewConstMetric(desc, prom.CounterValue, float64(value), labels...)
}

func gauge(desc *prom.Desc, value float64, labels ...string) prom.Metric {
	return prom.MustNewConstMetric(desc, prom.GaugeValue, value, labels...)
}
