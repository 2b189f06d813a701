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

// measureAliases has the names and labels of kyma-project/runtime-watcher.
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

// Consumer has the metrics of a consumer of messages. It converts to the hooks of
// adapters/natsjetstream. Its functions return at once and may be called concurrently.
type Consumer struct {
	// Concluded counts a message for manager by its fate, for a reason. The reason is empty when
	// every event is enqueued.
	Concluded func(manager core.Manager, fate, reason string, took time.Duration)
	// Backlog sets the backlog in the stream of a manager.
	Backlog func(manager core.Manager, messages uint64, filled float64, oldest time.Duration)
	// Unavailable sets whether the messages of a manager can be taken: a reason means that they
	// cannot, "" that they can. The backlog is unknown meanwhile, so its series are removed.
	Unavailable func(manager core.Manager, reason string)
	// Redelivered counts a message that the stream delivers again.
	Redelivered func(manager core.Manager)
}

// NewConsumer returns the metrics of a consumer, registered with reg. It fails as [NewAgent] does.
func NewConsumer(reg prom.Registerer, opts Options) (c Consumer, err error) {
	err = register(reg, "consumer", opts, c.measure)
	return c, err
}

func (c *Consumer) measure(f *factory) {
	var fates, reasons vocabulary
	messages := f.counters("messages_total",
		"Messages that the consumer took, by fate and reason. A delayed one counts at each delivery.",
		labelManager, labelFate, labelReason)
	durations := f.histograms("message_duration_seconds",
		"Time to handle one delivery of a message, by fate.", requestBuckets(), labelFate)
	c.Concluded = func(manager core.Manager, fate, reason string, took time.Duration) {
		fate = fates.value(fate)
		durations.WithLabelValues(fate).Observe(took.Seconds())
		messages.WithLabelValues(f.managers.value(manager), fate, reasons.value(reason)).Inc()
	}

	backlog := f.gauges("backlog_messages", "Messages in the stream, 0 at a replica that takes none.", labelManager)
	filled := f.gauges("backlog_ratio",
		"Part of the bytes of the stream that is in use. A full stream refuses events.", labelManager)
	age := f.gauges("backlog_age_seconds", "Age of the oldest message in the stream, 0 without one.", labelManager)
	c.Backlog = func(manager core.Manager, messages uint64, part float64, oldest time.Duration) {
		name := f.managers.value(manager)
		backlog.WithLabelValues(name).Set(float64(messages))
		filled.WithLabelValues(name).Set(part)
		age.WithLabelValues(name).Set(oldest.Seconds())
	}

	unavailable := f.gauges("stream_unavailable",
		"1 while the stream of a manager, or its durable consumer, is refused or does not answer, otherwise 0.",
		labelManager)
	c.Unavailable = func(manager core.Manager, reason string) {
		name := f.managers.value(manager)
		if reason == "" {
			unavailable.WithLabelValues(name).Set(0)
			return
		}
		unavailable.WithLabelValues(name).Set(1)
		backlog.DeleteLabelValues(name)
		filled.DeleteLabelValues(name)
		age.DeleteLabelValues(name)
	}

	redelivered := f.counters("redelivered_messages_total",
		"Deliveries of messages that the stream had delivered before.", labelManager)
	c.Redelivered = func(manager core.Manager) { redelivered.WithLabelValues(f.managers.value(manager)).Inc() }
}
