package prometheus

import (
	"net/http"
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
	l := &Listener{}
	if err := register(reg, "listener", opts, l.measure); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Listener) measure(f *factory) {
	var contracts, reasons vocabulary
	l.certificates = newCertificates(f)
	answers := f.counters("requests_total", "Requests answered, by contract, manager, HTTP status and reason.",
		labelContract, labelManager, labelCode, labelReason)
	durations := f.histograms("request_duration_seconds",
		"Time to answer a request, by contract and HTTP status.", requestBuckets(), labelContract, labelCode)
	l.Hooks.Answered = func(contract string, manager core.Manager, status int, reason string, took time.Duration) {
		contract = contracts.value(contract)
		durations.WithLabelValues(contract, code(status)).Observe(took.Seconds())
		answers.WithLabelValues(contract, f.managers.value(manager), code(status), reasons.value(reason)).Inc()
	}
	inFlight := f.gauge("requests_in_flight", "Requests that the verifier or the handler is working on.")
	l.Hooks.InFlight = func(delta int) { inFlight.Add(float64(delta)) }
	l.Hooks.HandshakeFailed = f.count("tls_handshake_failures_total",
		"Connections with a failed TLS handshake, by cause.", labelCause)
	l.Hooks.ConnectionDropped = f.count("connections_dropped_total",
		"Connections that were closed for the limit, by reason.", labelReason)
	if f.opts.Aliases {
		l.measureAliases(f)
	}
}

// measureAliases adds the metrics of the listener of kyma-project/runtime-watcher, by its names and
// labels.
func (l *Listener) measureAliases(f *factory) {
	opts := func(name, help string) prom.CounterOpts {
		return prom.CounterOpts{
			Name: "watcher_listener_" + name, Help: "Alias: " + help, ConstLabels: prom.Labels{"server_name": "listener"},
		}
	}
	counter := func(name, help string) prom.Counter { return add(f, prom.NewCounter(opts(name, help))) }
	gauge := func(name, help string) prom.Gauge { return add(f, prom.NewGauge(prom.GaugeOpts(opts(name, help)))) }
	requests := counter("requests_total", "requests answered.")
	errors := counter("request_errors_total", "requests answered with 400 or more.")
	tooLarge := counter("exceeding_size_limit_requests_total", "requests answered with 413.")
	unverified := add(f, prom.NewCounterVec(opts("failed_verification_requests_total",
		"requests answered with 401 or 403."), []string{"request_uri_label"}))
	duration := gauge("request_duration", "time to answer the last request, in seconds.")
	inFlight := gauge("inflight_requests", "requests that the verifier or the handler is working on.")

	var contracts vocabulary
	hooks := l.Hooks
	l.Hooks.Answered = func(contract string, manager core.Manager, status int, reason string, took time.Duration) {
		hooks.Answered(contract, manager, status, reason, took)
		requests.Inc()
		duration.Set(took.Seconds())
		if status >= http.StatusBadRequest {
			errors.Inc()
		}
		switch status {
		case http.StatusRequestEntityTooLarge:
			tooLarge.Inc()
		case http.StatusUnauthorized, http.StatusForbidden:
			uri := "/" + contracts.value(contract) + "/" + f.managers.value(manager) + "/event"
			unverified.WithLabelValues(uri).Inc()
		}
	}
	l.Hooks.InFlight = func(delta int) {
		hooks.InFlight(delta)
		inFlight.Add(float64(delta))
	}
}

// requestBuckets range from an answer out of memory to a sender that writes slowly.
func requestBuckets() []float64 {
	return []float64{50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1, 5, 10}
}
