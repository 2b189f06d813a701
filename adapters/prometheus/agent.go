package prometheus

import (
	"errors"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

const (
	resultOK      = "ok"
	resultPartial = "partial"
	// decisionRefused is the decision on a request that was no admission review.
	decisionRefused = "refused"
)

// Agent is the metrics of an agent. Its methods are hooks, to be assigned to those of the parts that it is made of. They return at once and are
// safe for concurrent use.
type Agent struct {
	certificates

	ledger     *ledger
	outbox     *outboxCollector
	decisions  vocabulary
	results    vocabulary
	reasons    vocabulary
	problems   vocabulary
	places     vocabulary
	admissions *prom.HistogramVec
	refusals   *prom.CounterVec
	panics     *prom.CounterVec
	inFlight   prom.Gauge
	forwards   *prom.HistogramVec
	connects   *prom.CounterVec
	retries    *prom.CounterVec
	handshakes *prom.CounterVec
	causes     vocabulary
	drops      *prom.CounterVec
	servers    vocabulary
	stalls     prom.Counter
	canaries   *prom.HistogramVec
	canary     *prom.GaugeVec
	states     vocabulary
	contracts  vocabulary
}

// NewAgent returns the metrics of an agent, registered with reg. It fails with [ErrInvalidOptions] when reg is nil or opts are
// wrong, and with a [prom.AlreadyRegisteredError] when reg has such metrics: then nothing was registered.
func NewAgent(reg prom.Registerer, opts Options) (*Agent, error) {
	opts = opts.withDefaults()
	if err := check(reg, opts); err != nil {
		return nil, err
	}

	a := newAgent("agent", opts)

	all := collectors{
		a.ledger, a.outbox, a.admissions, a.refusals, a.panics, a.inFlight, a.forwards, a.connects, a.retries,
		a.handshakes, a.drops, a.stalls, a.canaries, a.canary, a.keyMaterial(),
	}
	if err := all.register(reg); err != nil {
		return nil, err
	}

	return a, nil
}

func newAgent(f factory, opts Options) *Agent {
	a := &Agent{
		certificates: newCertificates(f),
		ledger:       newLedger(f, opts),
		outbox:       newOutboxCollector(f, opts),
		admissions: f.histograms("admission_duration_seconds",
			"Time to answer a request of the webhook, by what was decided.", admissionBuckets(), labelDecision),
		refusals: f.counters("admission_refusals_total",
			"Requests of the webhook that were no admission review it could read.", labelCode, labelReason),
		panics:   f.counters("admission_panics_total", "Panics caught while a request of the webhook was answered, by place.", labelPlace),
		inFlight: f.gauge("admission_in_flight", "Requests of the webhook being answered."),
		forwards: f.histograms("forward_duration_seconds",
			"Time of one attempt to forward events to the control plane, by result.", forwardBuckets(), labelResult),
		connects: f.counters("forward_connections_total", "Attempts to connect to the control plane, by result.", labelResult),
		retries: f.counters("forward_retries_total",
			"Short retries within an attempt to forward, by the HTTP status that led to them; empty without an answer.", labelCode),
		handshakes: f.counters("tls_handshake_failures_total", "Connections to the webhook whose TLS handshake failed, by cause.", labelCause),
		drops: f.counters("connections_dropped_total",
			"Connections to a server of the agent that were closed because there were too many, by reason.", labelServer, labelReason),
		stalls: f.counter("stalls_total",
			"Times the agent did not run for longer than an API server may wait, after which a resync stands in for what it was not told."),
		canaries: f.histograms("canary_duration_seconds",
			"Time of one write of the canary, by the state that it showed.", forwardBuckets(), labelState),
		canary: f.gauges("canary_state", "1 for what the last write of the canary showed, 0 for what an earlier one did.", labelState),
	}
	a.forwards.WithLabelValues(resultOK)
	a.connects.WithLabelValues(resultOK)

	return a
}

// ReadOutbox makes every scrape read the counts of an outbox: the method of that name. Call it once.
func (a *Agent) ReadOutbox(counts func() map[core.Manager]outbox.Counts) {
	a.outbox.mu.Lock()
	defer a.outbox.mu.Unlock()

	a.outbox.counts = counts
}

// Attempted is the hook of that name of an outbox: a forwarder was called for a number of events, took so long and returned err.
func (a *Agent) Attempted(manager core.Manager, events int, took time.Duration, err error) {
	a.forwards.WithLabelValues(a.results.value(result(err))).Observe(took.Seconds())
	a.ledger.attempted(manager, a.byResult(events, err))
}

// Connected is the hook of that name of the HTTP forwarder: it tried to connect, which failed if err is not nil.
func (a *Agent) Connected(err error) { a.connects.WithLabelValues(a.results.value(result(err))).Inc() }

// Retried is the hook of that name of the HTTP forwarder: it tries again, after an HTTP status or, if that is 0, after no answer.
func (a *Agent) Retried(status int) {
	after := ""
	if status != 0 {
		after = code(status)
	}

	a.retries.WithLabelValues(after).Inc()
}

// ContractInUse notes which contract events to a manager travel with: "v1", "v2", ….
func (a *Agent) ContractInUse(manager core.Manager, contract string) {
	a.ledger.contractInUse(manager, a.contracts.value(contract))
}

// ContractUnknown counts an attempt to forward that was answered as if the contract was not known.
func (a *Agent) ContractUnknown(manager core.Manager) { a.ledger.contractUnknown(manager) }

// CanaryProbed is the hook Probed of a canary: a write took so long and showed whether the API server calls the agent.
func (a *Agent) CanaryProbed(state core.CanaryState, took time.Duration) {
	word := a.states.value(string(state))
	a.canaries.WithLabelValues(word).Observe(took.Seconds())

	a.canary.WithLabelValues(word).Set(1)

	for _, other := range a.states.values() {
		if other != word {
			a.canary.WithLabelValues(other).Set(0)
		}
	}
}

// Reviewed is the hook of that name of the admission handler: a review for manager was answered with decision.
func (a *Agent) Reviewed(manager core.Manager, decision string, took time.Duration) {
	decision = a.decisions.value(decision)
	a.admissions.WithLabelValues(decision).Observe(took.Seconds())
	a.ledger.reviewed(manager, decision)
}

// Refused is the hook of that name of the admission handler: a request was answered with an HTTP status other than 200.
func (a *Agent) Refused(status int, reason string, took time.Duration) {
	a.admissions.WithLabelValues(decisionRefused).Observe(took.Seconds())
	a.refusals.WithLabelValues(code(status), a.reasons.value(reason)).Inc()
}

// OwnerProblem is the hook of that name of the admission handler: the owner of an object is missing or malformed.
func (a *Agent) OwnerProblem(manager core.Manager, problem string) {
	a.ledger.ownerProblem(manager, a.problems.value(problem))
}

// Panicked is the hook of that name of the admission handler: a panic was caught.
func (a *Agent) Panicked(place string) { a.panics.WithLabelValues(a.places.value(place)).Inc() }

// InFlight is the hook of that name of the admission handler: it is given 1 before a request is read, and -1 after it was answered.
func (a *Agent) InFlight(delta int) { a.inFlight.Add(float64(delta)) }

// HandshakeFailed counts a connection to the webhook whose TLS handshake failed.
func (a *Agent) HandshakeFailed(cause string) {
	a.handshakes.WithLabelValues(a.causes.value(cause)).Inc()
}

// ConnectionDropped counts a connection that a server closed because there were too many.
func (a *Agent) ConnectionDropped(server, reason string) {
	a.drops.WithLabelValues(a.servers.value(server), a.reasons.value(reason)).Inc()
}

// Stalled is called when the agent did not run for longer than an API server may wait.
func (a *Agent) Stalled() { a.stalls.Inc() }

// Forget frees the counters of a manager that is not served any more, except those of the outbox. They
// come back, from zero, when the manager is seen again.
func (a *Agent) Forget(manager core.Manager) { a.ledger.forget(manager) }

// byResult splits the events of an attempt by what became of each.
func (a *Agent) byResult(events int, err error) map[string]int64 {
	var failed core.EventErrors
	if !errors.As(err, &failed) {
		return map[string]int64{a.results.value(result(err)): int64(events)}
	}

	split := map[string]int64{resultOK: int64(max(events-len(failed), 0))}
	for _, cause := range failed {
		split[a.results.value(core.Reason(cause))]++
	}

	return split
}

func result(err error) string {
	var failed core.EventErrors

	switch {
	case err == nil:
		return resultOK
	case errors.As(err, &failed):
		return resultPartial
	default:
		return core.Reason(err)
	}
}

// admissionBuckets are fine below a millisecond, the bound on what the agent may add to a write, and reach to where the API server's
// patience with a webhook ends.
func admissionBuckets() []float64 {
	return []float64{25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1, 10}
}

// forwardBuckets reach from a neighbouring machine to a hanging control plane.
func forwardBuckets() []float64 {
	return []float64{1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10, 30}
}
