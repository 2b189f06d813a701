package prometheus

import (
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Listener has the metrics of a listener. Its methods are hooks for it. They return at once and may
// be called concurrently.
type Listener struct {
	certificates
	managers   *managers
	answers    *prom.CounterVec
	durations  *prom.HistogramVec
	inFlight   prom.Gauge
	handshakes *prom.CounterVec
	drops      *prom.CounterVec

	causes, contracts, reasons vocabulary
	// aliases is nil without Options.Aliases.
	aliases *listenerAliases
}

// NewListener returns the metrics of a listener, registered with reg. It fails as [NewAgent] does.
func NewListener(reg prom.Registerer, opts Options) (*Listener, error) {
	opts = opts.withDefaults()
	if err := check(reg, opts); err != nil {
		return nil, err
	}
	l := newListener("listener", newManagers(opts))
	all := collectors{l.answers, l.durations, l.inFlight, l.handshakes, l.drops, l.keyMaterial()}
	if opts.Aliases {
		l.aliases = newListenerAliases()
		all = append(all, l.aliases.all()...)
	}
	if err := all.register(reg); err != nil {
		return nil, err
	}
	return l, nil
}

func newListener(f factory, managers *managers) *Listener {
	return &Listener{
		certificates: newCertificates(f),
		managers:     managers,
		answers: f.counters("requests_total", "Requests answered, by contract, manager, HTTP status and reason.",
			labelContract, labelManager, labelCode, labelReason),
		durations: f.histograms("request_duration_seconds",
			"Time to answer a request, by contract and HTTP status.", requestBuckets(), labelContract, labelCode),
		inFlight: f.gauge("requests_in_flight", "Requests that the verifier or the handler is working on."),
		handshakes: f.counters("tls_handshake_failures_total",
			"Connections with a failed TLS handshake, by cause.", labelCause),
		drops: f.counters("connections_dropped_total",
			"Connections that were closed for the limit, by reason.", labelReason),
	}
}

// Answered counts a request for manager that was answered with an HTTP status, for a reason.
// Contract and manager are empty when the request names no known one. The reason is empty for a
// success.
func (l *Listener) Answered(contract string, manager core.Manager, status int, reason string, took time.Duration) {
	contract = l.contracts.value(contract)
	l.durations.WithLabelValues(contract, code(status)).Observe(took.Seconds())
	l.answers.WithLabelValues(contract, l.managers.value(manager), code(status), l.reasons.value(reason)).Inc()
	if l.aliases != nil {
		l.aliases.answered("/"+contract+"/"+l.managers.value(manager)+"/event", status, took)
	}
}

// InFlight adds 1 before the work on a request, and -1 after it.
func (l *Listener) InFlight(delta int) {
	l.inFlight.Add(float64(delta))
	if l.aliases != nil {
		l.aliases.inFlight.Add(float64(delta))
	}
}

// HandshakeFailed counts a connection with a failed TLS handshake.
func (l *Listener) HandshakeFailed(cause string) {
	l.handshakes.WithLabelValues(l.causes.value(cause)).Inc()
}

// ConnectionDropped counts a connection that was closed for the limit.
func (l *Listener) ConnectionDropped(reason string) {
	l.drops.WithLabelValues(l.reasons.value(reason)).Inc()
}

// requestBuckets range from an answer out of memory to a sender that writes slowly.
func requestBuckets() []float64 {
	return []float64{50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1, 5, 10}
}
