package prometheus

import (
	"cmp"
	"fmt"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const namespace = "runtime_watcher"

// factory makes metrics with this second word in their names. It registers them together, so that a
// failed registration leaves none behind.
type factory struct {
	word     string
	opts     Options
	managers *managers
	made     []prom.Collector

	// descs are the metrics that scrape reads.
	descs  []*prom.Desc
	scrape func(metrics chan<- prom.Metric)
}

func newFactory(word string, opts Options) (*factory, error) {
	opts.MaxManagers = cmp.Or(opts.MaxManagers, defaultMaxManagers)
	f := &factory{
		word: word, opts: opts, managers: &managers{max: opts.MaxManagers}, scrape: func(chan<- prom.Metric) {},
	}
	for _, manager := range opts.Managers {
		f.managers.value(manager)
	}
	return f, opts.validate()
}

func register(reg prom.Registerer, word string, opts Options, measure func(f *factory)) error {
	if reg == nil {
		return fmt.Errorf("%w: the registerer is nil, want one such as prometheus.NewRegistry()", errOptions)
	}
	f, err := newFactory(word, opts)
	if err != nil {
		return err
	}
	measure(f)
	if err := reg.Register(f); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

func (f *factory) Describe(descs chan<- *prom.Desc) {
	for _, collector := range f.made {
		collector.Describe(descs)
	}
	for _, desc := range f.descs {
		descs <- desc
	}
}

func (f *factory) Collect(metrics chan<- prom.Metric) {
	for _, collector := range f.made {
		collector.Collect(metrics)
	}
	f.scrape(metrics)
}

func add[C prom.Collector](f *factory, made C) C {
	f.made = append(f.made, made)
	return made
}

func (f *factory) named(name, help string) prom.Opts {
	return prom.Opts{Namespace: namespace, Subsystem: f.word, Name: name, Help: help}
}

func (f *factory) gauge(name, help string) prom.Gauge {
	return add(f, prom.NewGauge(prom.GaugeOpts(f.named(name, help))))
}

func (f *factory) gauges(name, help string, labels ...string) *prom.GaugeVec {
	return add(f, prom.NewGaugeVec(prom.GaugeOpts(f.named(name, help)), labels))
}

func (f *factory) counters(name, help string, labels ...string) *prom.CounterVec {
	return add(f, prom.NewCounterVec(prom.CounterOpts(f.named(name, help)), labels))
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
func (f *factory) countBy(name, help, label string) func(manager core.Manager, word string) {
	counters, words := f.counters(name, help, labelManager, label), new(vocabulary)
	return func(manager core.Manager, word string) {
		counters.WithLabelValues(f.managers.value(manager), words.value(word)).Inc()
	}
}

// sample returns a value of a metric that is read at each scrape.
type sample = func(value float64, labels ...string) prom.Metric

func (f *factory) sampled(kind prom.ValueType, name, help string, labels []string) sample {
	desc := prom.NewDesc(prom.BuildFQName(namespace, f.word, name), help, labels, nil)
	f.descs = append(f.descs, desc)
	return func(value float64, labels ...string) prom.Metric {
		return prom.MustNewConstMetric(desc, kind, value, labels...)
	}
}

func (f *factory) sampledGauge(name, help string, labels ...string) sample {
	return f.sampled(prom.GaugeValue, name, help, labels)
}

func (f *factory) sampledCounter(name, help string, labels ...string) sample {
	return f.sampled(prom.CounterValue, name, help, labels)
}
