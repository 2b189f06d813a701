package watchermetrics

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const namespace = "runtime_watcher"

// factory registers its metrics together, so that a failed registration leaves none behind.
type factory struct {
	word     string
	opts     Options
	managers *managers
	made     []prom.Collector
	// aliases are registered one by one, because another program may have their names.
	aliases []prom.Collector

	// descs are the metrics that scrape reads.
	descs  []*prom.Desc
	scrape func(metrics chan<- prom.Metric)
}

func newFactory(word string, opts Options) (*factory, error) {
	opts.MaxManagers = cmp.Or(opts.MaxManagers, 100)
	f := &factory{
		word: word, opts: opts, managers: &managers{max: opts.MaxManagers}, scrape: func(chan<- prom.Metric) {},
	}
	for _, manager := range opts.Managers {
		f.managers.takeManager(manager)
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

	for _, alias := range f.aliases {
		_ = reg.Register(alias) // A name that is registered stays with its owner.
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

func alias[C prom.Collector](f *factory, made C) C {
	f.aliases = append(f.aliases, made)
	return made
}

func (f *factory) metricOpts(name, help string) prom.Opts {
	return prom.Opts{Namespace: namespace, Subsystem: f.word, Name: name, Help: help}
}

func (f *factory) addGauge(name, help string) prom.Gauge {
	return add(f, prom.NewGauge(prom.GaugeOpts(f.metricOpts(name, help))))
}

func (f *factory) addGauges(name, help string, labels ...string) *prom.GaugeVec {
	return add(f, prom.NewGaugeVec(prom.GaugeOpts(f.metricOpts(name, help)), labels))
}

func (f *factory) addCounters(name, help string, labels ...string) *prom.CounterVec {
	return add(f, prom.NewCounterVec(prom.CounterOpts(f.metricOpts(name, help)), labels))
}

func (f *factory) addHistograms(name, help string, buckets []float64, labels ...string) *prom.HistogramVec {
	return add(f, prom.NewHistogramVec(prom.HistogramOpts{
		Namespace: namespace, Subsystem: f.word, Name: name, Help: help, Buckets: buckets,
	}, labels))
}

func (f *factory) countWords(name, help, label string) func(word string) {
	counters := f.addCounters(name, help, label)
	words := new(vocabulary)
	return func(word string) { counters.WithLabelValues(words.takeValue(word)).Inc() }
}

func (f *factory) countBy(name, help, label string) func(manager core.Manager, word string) {
	counters := f.addCounters(name, help, labelManager, label)
	words := new(vocabulary)
	return func(manager core.Manager, word string) {
		counters.WithLabelValues(f.managers.takeManager(manager), words.takeValue(word)).Inc()
	}
}

// ages is the time since the last observation for each manager. This process measures it, so that
// it does not depend on how the clocks of the node and of Prometheus differ, or on a step of one.
// It is safe for concurrent use.
type ages struct {
	desc *prom.Desc

	mu sync.Mutex
	// began contains the times of the last observations by label. Their monotonic part counts.
	began map[string]time.Time
}

func (f *factory) addAges(name, help string) *ages {
	desc := prom.NewDesc(prom.BuildFQName(namespace, f.word, name), help, []string{labelManager}, nil)
	return add(f, &ages{desc: desc, began: map[string]time.Time{}})
}

// noteObservation notes an observation.
func (a *ages) noteObservation(manager string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.began[manager] = time.Now()
}

// Describe implements [prom.Collector].
func (a *ages) Describe(descs chan<- *prom.Desc) { descs <- a.desc }

// Collect implements [prom.Collector].
func (a *ages) Collect(metrics chan<- prom.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()

	for manager, began := range a.began {
		metrics <- prom.MustNewConstMetric(a.desc, prom.GaugeValue, time.Since(began).Seconds(), manager)
	}
}

type sample = func(value float64, labels ...string) prom.Metric

func (f *factory) addSampled(kind prom.ValueType, name, help string, labels []string) sample {
	desc := prom.NewDesc(prom.BuildFQName(namespace, f.word, name), help, labels, nil)
	f.descs = append(f.descs, desc)
	return func(value float64, labels ...string) prom.Metric {
		return prom.MustNewConstMetric(desc, kind, value, labels...)
	}
}

func (f *factory) sampledGauge(name, help string, labels ...string) sample {
	return f.addSampled(prom.GaugeValue, name, help, labels)
}

func (f *factory) sampledCounter(name, help string, labels ...string) sample {
	return f.addSampled(prom.CounterValue, name, help, labels)
}

const (
	labelCause    = "cause"
	labelCode     = "code"
	labelContract = "contract"
	labelDecision = "decision"
	labelFate     = "fate"
	labelManager  = "manager"
	labelPhase    = "phase"
	labelPlace    = "place"
	labelProblem  = "problem"
	labelReason   = "reason"
	labelResult   = "result"
	labelRuntime  = "runtime"
	labelState    = "state"
	labelServer   = "server"
	labelUse      = "use"
	labelVersion  = "version"
)

const (
	// otherValue is also the result of core.Reason for an unknown cause.
	otherValue = "other"
	// maxValues is for labels other than the manager. Their values are constants of our code.
	maxValues     = 64
	maxValueBytes = 64
)

// vocabulary bounds the values of one label: the first maxValues are kept, others become "other".
// The zero value is ready to use. It is safe for concurrent use.
type vocabulary struct {
	mu   sync.Mutex
	seen map[string]struct{}
}

// takeValue returns word, or "other" when there is no room for it. An empty word stays empty.
func (v *vocabulary) takeValue(word string) string {
	// A value that is not UTF-8 makes the whole scrape fail.
	isValid := func() bool { return len(word) <= maxValueBytes && utf8.ValidString(word) }
	if word == "" || v.takeWord(word, maxValues, isValid) {
		return word
	}
	return otherValue
}

func (v *vocabulary) takeWord(word string, most int, isValid func() bool) bool {
	v.mu.Lock()
	defer v.mu.Unlock()

	if _, known := v.seen[word]; known {
		return true
	}
	if len(v.seen) >= most || !isValid() {
		return false
	}
	if v.seen == nil {
		v.seen = make(map[string]struct{})
	}

	v.seen[word] = struct{}{}
	return true
}

func (v *vocabulary) takenValues() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Collect(maps.Keys(v.seen))
}

// otherManager is the value of the label "manager" for all managers without series of their own. It
// is not a valid name of a manager.
const otherManager = "_other"

// managers bounds the values of the label "manager". It is safe for concurrent use.
type managers struct {
	vocabulary

	max int
}

// takeManager returns the manager, or "_other" when its name is invalid or there is no room for it.
func (m *managers) takeManager(manager core.Manager) string {
	if m.takeWord(string(manager), m.max, func() bool { return validManager(manager) }) {
		return string(manager)
	}
	return otherManager
}

func validManager(manager core.Manager) bool {
	_, err := core.ParseManager(string(manager))
	return err == nil
}

func code(status int) string {
	if status < 100 || status > 599 {
		return otherValue
	}
	return strconv.Itoa(status)
}

var errOptions = errors.New("invalid metrics options")

// Options are the optional settings of metrics. The zero value is the documented default.
type Options struct {
	// Managers always have separate series. For an agent, these series exist from the start, with
	// the value zero, so that alerts can compare them. Other managers get series with their first
	// event. A listener or a consumer logs each of Managers that it does not serve. Default: none.
	Managers []core.Manager
	// MaxManagers bounds the managers with separate series, including Managers. All other managers
	// share the label value "_other". Default: 100.
	MaxManagers int
	// Aliases adds the six metrics watcher_listener_* of kyma-project/runtime-watcher to the
	// metrics of a listener. A name that is already registered is skipped without an error.
	// docs/platforms/migration.md lists the differences. Default: false.
	Aliases bool
	// PerRuntime bounds the series of single runtimes. [RegisterFleet] has three series for each
	// pair of runtime and manager. Pairs that are not fresh come first, for which each scrape sorts
	// all known pairs. [RegisterInstallations] has one series for each runtime with a problem and
	// applies the bound to each problem separately. Default: 0, so there are no such series.
	PerRuntime int
}

func (o Options) validate() error {
	var wrong []error
	if o.MaxManagers < 0 {
		wrong = append(wrong, fmt.Errorf("MaxManagers is %d, want at least 1", o.MaxManagers))
	} else if len(o.Managers) > o.MaxManagers {
		wrong = append(wrong, fmt.Errorf("%d Managers, want at most MaxManagers, %d", len(o.Managers), o.MaxManagers))
	}

	if o.PerRuntime < 0 {
		wrong = append(wrong, fmt.Errorf("PerRuntime is %d, want at least 0", o.PerRuntime))
	}

	for i, manager := range o.Managers {
		_, err := core.ParseManager(string(manager))
		wrong = append(wrong, err)

		if slices.Contains(o.Managers[:i], manager) {
			wrong = append(wrong, fmt.Errorf("manager %q is named twice in Managers", manager))
		}
	}

	if err := errors.Join(wrong...); err != nil {
		return fmt.Errorf("%w: %w", errOptions, err)
	}

	return nil
}
