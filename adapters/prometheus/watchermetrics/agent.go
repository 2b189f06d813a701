package watchermetrics

import (
	"errors"
	"sync/atomic"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// NewAgent returns the metrics of an agent, registered with reg. It fails if reg is nil or an
// option is invalid. If reg already has such metrics, it fails with a [prom.AlreadyRegisteredError]
// and registers nothing.
func NewAgent(reg prom.Registerer, opts Options) (*Agent, error) {
	a := &Agent{}
	if err := register(reg, "agent", opts, a.measureAll); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Agent) measureAll(f *factory) {
	a.certificates = newCertificates(f)
	a.measureOutbox(f)
	a.measureWebhook(f)
	a.measureForwarding(f)
	a.measureProcess(f)
}

func (a *Agent) measureProcess(f *factory) {
	var servers, reasons, states vocabulary
	drops := f.addCounters("connections_dropped_total",
		"Connections to a server of the agent that were closed because of a limit, by reason.",
		labelServer, labelReason)
	a.ConnectionDropped = func(d hook.ConnectionDrop) {
		drops.WithLabelValues(servers.takeValue(d.Server), reasons.takeValue(string(d.Reason))).Inc()
	}

	stalls := f.addCounters("stalls_total",
		"Number of times that the agent did not run for 1 s or longer. A resync replaces the missed reviews.",
	).WithLabelValues()
	a.Stalled = func(hook.Stall) { stalls.Inc() }

	broken := f.addGauge("managers_file_broken",
		"1 while the file with managers is broken and the last good list is in use, otherwise 0.")
	a.ManagersFileBroken = func(is bool) {
		broken.Set(0)
		if is {
			broken.Set(1)
		}
	}

	canaries := f.addHistograms("canary_duration_seconds",
		"Duration of one write of the canary, by the state that the write showed.", forwardBuckets(), labelState)
	canary := f.addGauges("canary_state",
		"1 for the state that the last write of the canary showed, 0 for each earlier state.", labelState)
	a.CanaryProbed = func(p hook.CanaryProbe) {
		canaries.WithLabelValues(states.takeValue(string(p.State))).Observe(p.Took.Seconds())
		choose(canary, &states, string(p.State))
	}

	var results vocabulary
	checks := f.addCounters("webhook_checks_total",
		"Comparisons of the webhooks at the API server with the applied webhooks, by result.", labelResult)
	a.WebhooksChecked = func(c hook.WebhookCheck) { checks.WithLabelValues(results.takeValue(c.Result)).Inc() }
}

// choose sets the series of word to 1, and the series of other words to 0. It is the last label.
func choose(gauges *prom.GaugeVec, words *vocabulary, word string, labels ...string) {
	word = words.takeValue(word)
	gauges.WithLabelValues(append(labels, word)...).Set(1)

	for _, other := range words.takenValues() {
		if other != word {
			gauges.WithLabelValues(append(labels, other)...).Set(0)
		}
	}
}

const (
	resultOK      = "ok"
	resultPartial = "partial"
)

func (a *Agent) measureForwarding(f *factory) {
	var results, contracts vocabulary
	a.measureAttempts(f, &results)
	connects := f.addCounters("forward_connections_total",
		"Attempts to connect to the control plane, by result.", labelResult)
	connects.WithLabelValues(resultOK)
	a.Connected = func(c hook.Connection) { connects.WithLabelValues(results.takeValue(result(c.Err))).Inc() }

	retries := f.addCounters("forward_retries_total",
		"Short retries within an attempt to forward, by the HTTP status of the answer before the retry.", labelCode)
	a.Retried = func(r hook.Retry) {
		after := ""
		if r.Status != 0 {
			after = code(r.Status)
		}

		retries.WithLabelValues(after).Inc()
	}

	inUse := f.addGauges("contract_in_use",
		"1 for the contract that is in use for the manager, 0 for each contract that was used before.",
		labelManager, labelContract)
	a.ContractInUse = func(c hook.ContractInUse) {
		choose(inUse, &contracts, string(c.Contract), f.managers.takeManager(c.Manager))
	}

	unknown := f.addCounters("contract_unknown_total",
		"Attempts to forward that the control plane answered as if it did not support the contract.", labelManager)

	for _, manager := range f.managers.takenValues() {
		unknown.WithLabelValues(manager)
	}

	a.ContractUnknown = func(u hook.UnknownContract) {
		unknown.WithLabelValues(f.managers.takeManager(u.Manager)).Inc()
	}
}

func (a *Agent) measureAttempts(f *factory, results *vocabulary) {
	durations := f.addHistograms("forward_duration_seconds",
		"Duration of one attempt to forward events or a heartbeat to the control plane, by result.",
		forwardBuckets(), labelResult)
	durations.WithLabelValues(resultOK)
	byResult := f.addCounters("forward_events_total",
		"Events in attempts to forward them, including repeated events, by result.", labelManager, labelResult)
	success := f.addAges("forward_last_success_age_seconds",
		"Time since the last attempt that was acknowledged completely, by the clock of the agent.")
	a.Attempted = func(attempt hook.Attempt) {
		label := f.managers.takeManager(attempt.Manager)
		durations.WithLabelValues(results.takeValue(result(attempt.Err))).Observe(attempt.Took.Seconds())

		for result, n := range split(attempt.Events, attempt.Err, results) {
			byResult.WithLabelValues(label, result).Add(float64(n))
		}

		if attempt.Err == nil {
			success.noteObservation(label)
		}
	}
}

func split(events int, err error, results *vocabulary) map[string]int {
	failed, partial := errors.AsType[core.EventErrors](err)
	switch {
	case events == 0:
		return nil
	case !partial:
		return map[string]int{results.takeValue(result(err)): events}
	}

	split := map[string]int{resultOK: events}
	for i, cause := range failed {
		if i < events { // The next index stands for the heartbeat.
			split[results.takeValue(string(core.ReasonOf(cause)))]++
			split[resultOK]--
		}
	}

	return split
}

func result(err error) string {
	_, isPartial := errors.AsType[core.EventErrors](err)
	switch {
	case err == nil:
		return resultOK
	case isPartial:
		return resultPartial
	default:
		return string(core.ReasonOf(err))
	}
}

// forwardBuckets range from a machine nearby to a control plane that does not answer.
func forwardBuckets() []float64 {
	return []float64{1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10, 30}
}

// measureOutbox reads all counts at one moment, so they are balanced.
func (a *Agent) measureOutbox(f *factory) {
	accepted := f.sampledCounter("events_accepted_total",
		"Events offered to the outbox: always the sum of the delivered, coalesced, dropped and pending events.",
		labelManager)
	delivered := f.sampledCounter("events_delivered_total", "Events acknowledged by the control plane.", labelManager)
	coalesced := f.sampledCounter("events_coalesced_total",
		"Events that were replaced by another event with the same key.", labelManager)
	dropped := f.sampledCounter("events_dropped_total",
		"Events that were dropped, by reason.", labelManager, labelReason)
	pending := f.sampledGauge("events_pending", "Events that wait to be sent or acknowledged.", labelManager)
	oldest := f.sampledGauge("oldest_event_pending_seconds",
		"Age of the oldest pending event, 0 if no event is pending.", labelManager)
	box := new(atomic.Pointer[outbox.Outbox])
	reasons := new(vocabulary)
	a.ReadOutbox = box.Store
	f.scrape = func(metrics chan<- prom.Metric) {
		for manager, s := range stocksOf(box.Load(), f.managers, reasons) {
			metrics <- accepted(float64(s.Accepted), manager)
			metrics <- delivered(float64(s.Delivered), manager)
			metrics <- coalesced(float64(s.Coalesced), manager)
			metrics <- pending(float64(s.Pending), manager)
			metrics <- oldest(s.oldest, manager)

			for reason, n := range s.Dropped {
				metrics <- dropped(float64(n), manager, string(reason))
			}
		}
	}
}

type stock struct {
	outbox.Counts

	oldest float64 // seconds
}

// stocksOf returns the stocks by label value. Each known manager has one, and each stock has the
// drop reasons of the outbox: PromQL does not take an absent series for zero.
func stocksOf(box *outbox.Outbox, managers *managers, reasons *vocabulary) map[string]*stock {
	all := make(map[string]*stock)
	of := func(label string) *stock {
		if all[label] == nil {
			all[label] = &stock{Counts: outbox.Counts{Dropped: map[core.Reason]int64{
				core.Reason(reasons.takeValue(string(outbox.ReasonOverflow))): 0,
				core.Reason(reasons.takeValue(string(outbox.ReasonShutdown))): 0,
			}}}
		}
		return all[label]
	}

	for _, manager := range managers.takenValues() {
		of(manager)
	}

	if box == nil {
		return all
	}

	for manager, counts := range box.Counts() {
		s := of(managers.takeManager(manager))
		s.Accepted += counts.Accepted
		s.Delivered += counts.Delivered
		s.Coalesced += counts.Coalesced
		s.Pending += counts.Pending

		for reason, n := range counts.Dropped {
			s.Dropped[core.Reason(reasons.takeValue(string(reason)))] += n
		}

		s.oldest = max(s.oldest, box.OldestPending(manager).Seconds())
	}

	return all
}

// Informer contains the metrics of a source that watches, such as adapters/informer. Its functions
// are hooks for that source. Create it with [NewInformer] and register it as a collector. It is
// safe for concurrent use.
type Informer struct {
	// Observed counts a change to an object, by the decision of the filter.
	Observed func(hook.Observation)
	// Proved notes that the API server showed that a watch works.
	Proved func(hook.Proof)
	// Failed counts a failed attempt to establish a watch.
	Failed func(hook.WatchFailure)

	prom.Collector
}

// NewInformer returns metrics that are not registered yet. The error names each invalid option.
func NewInformer(opts Options) (*Informer, error) {
	f, err := newFactory("agent", opts)
	if err != nil {
		return nil, err
	}

	last := f.addAges("informer_last_proof_age_seconds",
		"Time since the API server last showed that a watch works, by the clock of the agent.")
	changes := f.countBy("informer_changes_total",
		"Changes to watched objects that the informer observed, by decision.", labelDecision)
	failures := f.countBy("informer_failures_total",
		"Failed attempts by the informer to establish a watch.", labelReason)

	return &Informer{
		Observed:  func(o hook.Observation) { changes(o.Manager, string(o.Decision)) },
		Proved:    func(p hook.Proof) { last.noteObservation(f.managers.takeManager(p.Manager)) },
		Failed:    func(w hook.WatchFailure) { failures(w.Manager, string(w.Reason)) },
		Collector: f,
	}, nil
}
