package watchermetrics

import "github.com/runtime-watcher/runtime-watcher/core/hook"

const decisionRefused = "refused"

func (a *Agent) measureWebhook(f *factory) {
	var decisions, reasons vocabulary
	durations := f.addHistograms("admission_duration_seconds",
		"Time to answer a request to the webhook, by decision.", admissionBuckets(), labelDecision)
	reviews := f.addCounters("admission_reviews_total",
		"Admission reviews answered, by decision.", labelManager, labelDecision)
	last := f.addAges("admission_last_review_age_seconds",
		"Time since the last admission review, by the clock of the agent.")
	a.Reviewed = func(r hook.Review) {
		decision := decisions.takeValue(string(r.Decision))
		label := f.managers.takeManager(r.Manager)
		durations.WithLabelValues(decision).Observe(r.Took.Seconds())
		reviews.WithLabelValues(label, decision).Inc()
		last.noteObservation(label)
	}

	refusals := f.addCounters("admission_refusals_total",
		"Requests to the webhook that were refused instead of reviewed.", labelCode, labelReason)
	a.Refused = func(r hook.Refusal) {
		durations.WithLabelValues(decisionRefused).Observe(r.Took.Seconds())
		refusals.WithLabelValues(code(r.Status), reasons.takeValue(string(r.Reason))).Inc()
	}

	ownerProblems := f.countBy("admission_owner_problems_total",
		"Reviews of objects with a missing or malformed owner.", labelProblem)
	a.OwnerProblem = func(p hook.OwnerProblem) { ownerProblems(p.Manager, string(p.Problem)) }

	panics := f.countWords("admission_panics_total",
		"Panics caught while a request to the webhook was answered, by place.", labelPlace)
	a.Panicked = func(p hook.Panic) { panics(string(p.Place)) }

	handshakes := f.countWords("tls_handshake_failures_total",
		"Connections to the webhook with a failed TLS handshake, by cause.", labelCause)
	a.HandshakeFailed = func(h hook.HandshakeFailure) { handshakes(string(h.Cause)) }

	inFlight := f.addGauge("admission_in_flight", "Requests to the webhook that are in progress.")
	a.InFlight = func(delta int) { inFlight.Add(float64(delta)) }
}

// admissionBuckets are fine below 1 ms, the limit for the time that the agent may add to a write.
// They end at the default timeout of a webhook.
func admissionBuckets() []float64 {
	return []float64{25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1, 10}
}
