package prometheus

import (
	"maps"
	"sync"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Listener is the metrics of a listener. Its methods are hooks, to be assigned to those of the listener. They return at once and are safe for
// concurrent use.
type Listener struct {
	certificates

	answers    *answers
	durations  *prom.HistogramVec
	inFlight   prom.Gauge
	handshakes *prom.CounterVec
	causes     vocabulary
	drops      *prom.CounterVec
	contracts  vocabulary
	reasons    vocabulary
}

// NewListener returns the metrics of a listener, registered with reg. It fails with [ErrInvalidOptions] when reg is nil or opts are
// wrong, and with a [prom.AlreadyRegisteredError] when reg has such metrics: then nothing was registered.
func NewListener(reg prom.Registerer, opts Options) (*Listener, error) {
	opts = opts.withDefaults()
	if err := check(reg, opts); err != nil {
		return nil, err
	}

	l := newListener("listener", opts)

	all := collectors{l.answers, l.durations, l.inFlight, l.handshakes, l.drops, l.keyMaterial()}
	if err := all.register(reg); err != nil {
		return nil, err
	}

	return l, nil
}

func newListener(f factory, opts Options) *Listener {
	return &Listener{
		certificates: newCertificates(f),
		answers:      newAnswers(f, opts),
		durations: f.histograms("request_duration_seconds",
			"Time to answer a request, by contract and HTTP status.", requestBuckets(), labelContract, labelCode),
		inFlight:   f.gauge("requests_in_flight", "Requests that the verifier or the handler is working on."),
		handshakes: f.counters("tls_handshake_failures_total", "Connections whose TLS handshake failed, by cause.", labelCause),
		drops: f.counters("connections_dropped_total",
			"Connections that were closed because there were too many, by reason.", labelReason),
	}
}

// Answered is the hook of that name of a listener: a request for manager was answered with an HTTP status, for a reason.
// Contract and manager are empty when the request names none that is known, and reason is when all is well.
func (l *Listener) Answered(contract string, manager core.Manager, status int, reason string, took time.Duration) {
	contract = l.contracts.value(contract)
	l.durations.WithLabelValues(contract, code(status)).Observe(took.Seconds())
	l.answers.count(answer{contract: contract, manager: string(manager), code: code(status), reason: l.reasons.value(reason)})
}

// InFlight is the hook of that name of a listener: it is given 1 before the work on a request, and -1 after.
func (l *Listener) InFlight(delta int) { l.inFlight.Add(float64(delta)) }

// HandshakeFailed is the hook of that name of a listener: it counts a connection whose TLS handshake failed.
func (l *Listener) HandshakeFailed(cause string) {
	l.handshakes.WithLabelValues(l.causes.value(cause)).Inc()
}

// ConnectionDropped is the hook of that name of a listener: it counts a connection that was closed because there were too many.
func (l *Listener) ConnectionDropped(reason string) {
	l.drops.WithLabelValues(l.reasons.value(reason)).Inc()
}

// Forget frees the series of a manager that is not served any more. They come back, from zero, when the manager is seen again.
func (l *Listener) Forget(manager core.Manager) { l.answers.forget(manager) }

// requestBuckets reach from an answer out of memory to a sender that is slow to write.
func requestBuckets() []float64 {
	return []float64{50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1, 5, 10}
}

// answer is the labels of one counter.
type answer struct{ contract, manager, code, reason string }

// answers counts requests, with a bound on the managers. A vector of client_golang could free a manager's series while another goroutine adds one.
type answers struct {
	desc *prom.Desc
	max  int

	mu       sync.Mutex
	managers map[string]struct{}
	counts   map[answer]int64
}

func newAnswers(f factory, opts Options) *answers {
	a := &answers{
		desc: f.desc("requests_total", "Requests answered, by contract, manager, HTTP status and reason.",
			labelContract, labelManager, labelCode, labelReason),
		max:      opts.MaxManagers,
		managers: make(map[string]struct{}),
		counts:   make(map[answer]int64),
	}

	for _, manager := range opts.Managers {
		a.managers[string(manager)] = struct{}{}
	}

	return a
}

func (a *answers) count(key answer) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if !a.known(key.manager) {
		key.manager = Other
	}

	a.counts[key]++
}

// known reports whether the manager has series of its own, which it gets if there is room.
func (a *answers) known(manager string) bool {
	if _, ok := a.managers[manager]; ok {
		return true
	}

	if len(a.managers) >= a.max || !validManager(core.Manager(manager)) {
		return false
	}

	a.managers[manager] = struct{}{}

	return true
}

func (a *answers) forget(manager core.Manager) {
	a.mu.Lock()
	defer a.mu.Unlock()

	delete(a.managers, string(manager))
	maps.DeleteFunc(a.counts, func(key answer, _ int64) bool { return key.manager == string(manager) })
}

func (a *answers) snapshot() map[answer]int64 {
	a.mu.Lock()
	defer a.mu.Unlock()

	return maps.Clone(a.counts)
}

// Describe implements [prom.Collector].
func (a *answers) Describe(descs chan<- *prom.Desc) { descs <- a.desc }

// Collect implements [prom.Collector].
func (a *answers) Collect(metrics chan<- prom.Metric) {
	for key, n := range a.snapshot() {
		metrics <- counter(a.desc, n, key.contract, key.manager, key.code, key.reason)
	}
}
