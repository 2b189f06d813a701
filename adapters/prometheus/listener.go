package prometheus

import (
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Listener has the metrics of a listener: the hooks for its options. They return at once and may be
// called concurrently.
type Listener struct {
	// Hooks fits the field Hooks of the options of a listener.
	Hooks hooks
	certificates
}

// hooks has the fields of the hooks of package listener, which no agent may link.
type hooks = struct {
	Answered          func(contract string, manager core.Manager, status int, reason string, took time.Duration)
	InFlight          func(delta int)
	HandshakeFailed   func(cause string)
	ConnectionDropped func(reason string)
}

type listenerMetrics struct {
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
	l, keys := newListenerMetrics("listener", newManagers(opts)), newCertificates("listener")
	all := collectors{l.answers, l.durations, l.inFlight, l.handshakes, l.drops, keys.all()}
	if opts.Aliases {
		l.aliases = newListenerAliases()
		all = append(all, l.aliases.all()...)
	}
	if err := all.register(reg); err != nil {
		return nil, err
	}
	return &Listener{certificates: keys, Hooks: hooks{
		Answered: l.answered, InFlight: l.addInFlight,
		HandshakeFailed: l.handshakeFailed, ConnectionDropped: l.connectionDropped,
	}}, nil
}

func newListenerMetrics(f factory, managers *managers) *listenerMetrics {
	return &listenerMetrics{
		managers: managers,
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

func (l *listenerMetrics) answered(contract string, manager core.Manager, status int, reason string, took time.Duration) {
	contract = l.contracts.value(contract)
	l.durations.WithLabelValues(contract, code(status)).Observe(took.Seconds())
	l.answers.WithLabelValues(contract, l.managers.value(manager), code(status), l.reasons.value(reason)).Inc()
	if l.aliases != nil {
		l.aliases.answered("/"+contract+"/"+l.managers.value(manager)+"/event", status, took)
	}
}

func (l *listenerMetrics) addInFlight(delta int) {
	l.inFlight.Add(float64(delta))
	if l.aliases != nil {
		l.aliases.inFlight.Add(float64(delta))
	}
}

func (l *listenerMetrics) handshakeFailed(cause string) {
	l.handshakes.WithLabelValues(l.causes.value(cause)).Inc()
}

func (l *listenerMetrics) connectionDropped(reason string) {
	l.drops.WithLabelValues(l.reasons.value(reason)).Inc()
}

// requestBuckets range from an answer out of memory to a sender that writes slowly.
func requestBuckets() []float64 {
	return []float64{50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1, 5, 10}
}
