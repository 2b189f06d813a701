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

// NewListener returns the metrics of a listener, registered with reg. It fails as [NewAgent] does.
func NewListener(reg prom.Registerer, opts Options) (*Listener, error) {
	opts = opts.withDefaults()
	if err := check(reg, opts); err != nil {
		return nil, err
	}
	f := &factory{word: "listener"}
	l := &Listener{certificates: newCertificates(f)}
	l.measureRequests(f, newManagers(opts), opts.Aliases)
	l.Hooks.HandshakeFailed = f.count("tls_handshake_failures_total",
		"Connections with a failed TLS handshake, by cause.", labelCause)
	l.Hooks.ConnectionDropped = f.count("connections_dropped_total",
		"Connections that were closed for the limit, by reason.", labelReason)
	if err := register(reg, f); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Listener) measureRequests(f *factory, managers *managers, withAliases bool) {
	var contracts, reasons vocabulary
	var aliases *listenerAliases
	if withAliases {
		aliases = newListenerAliases(f)
	}
	answers := f.counters("requests_total", "Requests answered, by contract, manager, HTTP status and reason.",
		labelContract, labelManager, labelCode, labelReason)
	durations := f.histograms("request_duration_seconds",
		"Time to answer a request, by contract and HTTP status.", requestBuckets(), labelContract, labelCode)
	l.Hooks.Answered = func(contract string, manager core.Manager, status int, reason string, took time.Duration) {
		contract = contracts.value(contract)
		durations.WithLabelValues(contract, code(status)).Observe(took.Seconds())
		answers.WithLabelValues(contract, managers.value(manager), code(status), reasons.value(reason)).Inc()
		if aliases != nil {
			aliases.answered("/"+contract+"/"+managers.value(manager)+"/event", status, took)
		}
	}

	inFlight := f.gauge("requests_in_flight", "Requests that the verifier or the handler is working on.")
	l.Hooks.InFlight = func(delta int) {
		inFlight.Add(float64(delta))
		if aliases != nil {
			aliases.inFlight.Add(float64(delta))
		}
	}
}

// requestBuckets range from an answer out of memory to a sender that writes slowly.
func requestBuckets() []float64 {
	return []float64{50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1, 5, 10}
}
