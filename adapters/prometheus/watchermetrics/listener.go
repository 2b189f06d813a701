package watchermetrics

import (
	"net/http"
	"slices"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// Listener contains the metrics of a listener as hooks for its options. They return immediately and
// may be called concurrently.
type Listener struct {
	// Hooks fits the field Hooks of the options of a listener.
	Hooks hook.Listener
	certificates
}

// NewListener returns the metrics of a listener, registered with reg. It fails for the reasons for
// which [NewAgent] fails.
func NewListener(reg prom.Registerer, opts Options) (*Listener, error) {
	l := &Listener{}
	if err := register(reg, "listener", opts, l.measureAll); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Listener) measureAll(f *factory) {
	l.Hooks.Managers = slices.Clone(f.opts.Managers)
	var contracts, reasons vocabulary
	l.certificates = newCertificates(f)
	answers := f.addCounters("requests_total", "Requests answered, by contract, manager, HTTP status and reason.",
		labelContract, labelManager, labelCode, labelReason)
	durations := f.addHistograms("request_duration_seconds",
		"Time to answer a request, by contract and HTTP status.", requestBuckets(), labelContract, labelCode)
	l.Hooks.Answered = func(a hook.Answer) {
		contract := contracts.takeValue(string(a.Contract))
		status := code(a.Status)
		durations.WithLabelValues(contract, status).Observe(a.Took.Seconds())
		manager := f.managers.takeManager(a.Manager)
		answers.WithLabelValues(contract, manager, status, reasons.takeValue(string(a.Reason))).Inc()
	}

	inFlight := f.addGauge("requests_in_flight", "Requests that the verifier or the handler is processing.")
	l.Hooks.InFlight = func(delta int) { inFlight.Add(float64(delta)) }
	handshakes := f.countWords("tls_handshake_failures_total",
		"Connections with a failed TLS handshake, by cause.", labelCause)
	l.Hooks.HandshakeFailed = func(h hook.HandshakeFailure) { handshakes(string(h.Cause)) }
	drops := f.countWords("connections_dropped_total",
		"Connections that were closed because of the limit, by reason.", labelReason)
	l.Hooks.ConnectionDropped = func(d hook.ConnectionDrop) { drops(string(d.Reason)) }

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

	counter := func(name, help string) prom.Counter { return alias(f, prom.NewCounter(opts(name, help))) }
	gauge := func(name, help string) prom.Gauge { return alias(f, prom.NewGauge(prom.GaugeOpts(opts(name, help)))) }
	requests := counter("requests_total", "requests answered.")
	errors := counter("request_errors_total", "requests answered with 400 or more.")
	tooLarge := counter("exceeding_size_limit_requests_total", "requests answered with 413.")
	unverified := alias(f, prom.NewCounterVec(opts("failed_verification_requests_total",
		"requests answered with 401 or 403."), []string{"request_uri_label"}))
	duration := gauge("request_duration", "time to answer the last request, in seconds.")
	inFlight := gauge("inflight_requests", "requests that the verifier or the handler is working on.")

	var contracts vocabulary
	hooks := l.Hooks
	l.Hooks.Answered = func(a hook.Answer) {
		hooks.Answered(a)
		requests.Inc()
		duration.Set(a.Took.Seconds())

		if a.Status >= http.StatusBadRequest {
			errors.Inc()
		}

		switch a.Status {
		case http.StatusRequestEntityTooLarge:
			tooLarge.Inc()
		case http.StatusUnauthorized, http.StatusForbidden:
			uri := "/" + contracts.takeValue(string(a.Contract)) + "/" + f.managers.takeManager(a.Manager) + "/event"
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

// Consumer contains the metrics of a consumer of messages. It can be converted to the hooks of
// adapters/natsjetstream. Its functions return immediately and may be called concurrently.
type Consumer struct {
	// Managers are the Managers of the options. The consumer logs each of these managers that it
	// does not serve.
	Managers []core.Manager
	// Concluded counts a message by its fate and its reason.
	Concluded func(hook.Conclusion)
	// Backlog sets the backlog in the stream of a manager.
	Backlog func(hook.Backlog)
	// Unavailable sets whether the messages of a manager can be taken. While they cannot be taken,
	// the backlog is unknown and its series are removed.
	Unavailable func(hook.Unavailability)
	// Redelivered counts a message that the stream delivers again.
	Redelivered func(hook.Redelivery)
}

// NewConsumer returns the metrics of a consumer, registered with reg. It fails for the reasons for
// which [NewAgent] fails.
func NewConsumer(reg prom.Registerer, opts Options) (c Consumer, err error) {
	err = register(reg, "consumer", opts, c.measureAll)
	return c, err
}

func (c *Consumer) measureAll(f *factory) {
	c.Managers = slices.Clone(f.opts.Managers)
	var fates, reasons vocabulary
	messages := f.addCounters("messages_total",
		"Messages that the consumer received, by fate and reason. A delayed message counts at each delivery.",
		labelManager, labelFate, labelReason)
	durations := f.addHistograms("message_duration_seconds",
		"Time to handle one delivery of a message, by fate.", requestBuckets(), labelFate)
	c.Concluded = func(c hook.Conclusion) {
		fate := fates.takeValue(string(c.Fate))
		durations.WithLabelValues(fate).Observe(c.Took.Seconds())
		messages.WithLabelValues(f.managers.takeManager(c.Manager), fate, reasons.takeValue(string(c.Reason))).Inc()
	}

	backlog := f.addGauges("backlog_messages",
		"Messages in the stream, 0 at a replica that takes no messages.", labelManager)
	filled := f.addGauges("backlog_ratio",
		"Used share of the bytes of the stream. A full stream refuses events.", labelManager)
	age := f.addGauges("backlog_age_seconds",
		"Age of the oldest message in the stream, 0 if there is no message.", labelManager)
	c.Backlog = func(b hook.Backlog) {
		name := f.managers.takeManager(b.Manager)
		backlog.WithLabelValues(name).Set(float64(b.Messages))
		filled.WithLabelValues(name).Set(b.Filled)
		age.WithLabelValues(name).Set(b.Oldest.Seconds())
	}

	unavailable := f.addGauges("stream_unavailable",
		"1 while the stream of a manager, or its durable consumer, is refused or does not answer, otherwise 0.",
		labelManager)
	c.Unavailable = func(u hook.Unavailability) {
		name := f.managers.takeManager(u.Manager)
		if u.Reason == "" {
			unavailable.WithLabelValues(name).Set(0)
			return
		}

		unavailable.WithLabelValues(name).Set(1)
		backlog.DeleteLabelValues(name)
		filled.DeleteLabelValues(name)
		age.DeleteLabelValues(name)
	}

	redelivered := f.addCounters("redelivered_messages_total",
		"Deliveries of messages that the stream had delivered before.", labelManager)
	c.Redelivered = func(r hook.Redelivery) { redelivered.WithLabelValues(f.managers.takeManager(r.Manager)).Inc() }
}
