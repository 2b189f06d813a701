package prometheus

import (
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// decisionRefused is the decision on a request that was no admission review.
const decisionRefused = "refused"

// webhookMetrics are those of admission reviews.
type webhookMetrics struct {
	durations  *prom.HistogramVec
	reviews    *prom.CounterVec
	last       *prom.GaugeVec
	owners     *prom.CounterVec
	refusals   *prom.CounterVec
	panics     *prom.CounterVec
	inFlight   prom.Gauge
	handshakes *prom.CounterVec

	decisions, problems, reasons, places, causes *vocabulary
}

func newWebhookMetrics(f factory) webhookMetrics {
	return webhookMetrics{
		durations: f.histograms("admission_duration_seconds",
			"Time to answer a request of the webhook, by decision.", admissionBuckets(), labelDecision),
		reviews: f.counters("admission_reviews_total",
			"Admission reviews answered, by decision.", labelManager, labelDecision),
		last: f.gauges("admission_last_review_timestamp_seconds",
			"Time of the last admission review, in Unix time.", labelManager),
		owners: f.counters("admission_owner_problems_total",
			"Reviews of objects with a missing or malformed owner.", labelManager, labelProblem),
		refusals: f.counters("admission_refusals_total",
			"Requests of the webhook that were no readable admission review.", labelCode, labelReason),
		panics: f.counters("admission_panics_total",
			"Panics caught while a request of the webhook was answered, by place.", labelPlace),
		inFlight: f.gauge("admission_in_flight", "Requests of the webhook in progress."),
		handshakes: f.counters("tls_handshake_failures_total",
			"Connections to the webhook with a failed TLS handshake, by cause.", labelCause),
		decisions: new(vocabulary), problems: new(vocabulary), reasons: new(vocabulary),
		places: new(vocabulary), causes: new(vocabulary),
	}
}

func (w webhookMetrics) all() collectors {
	return collectors{w.durations, w.reviews, w.last, w.owners, w.refusals, w.panics, w.inFlight, w.handshakes}
}

func (a *Agent) reviewed(manager core.Manager, decision string, took time.Duration) {
	decision = a.webhook.decisions.value(decision)
	label := a.managers.value(manager)
	a.webhook.durations.WithLabelValues(decision).Observe(took.Seconds())
	a.webhook.reviews.WithLabelValues(label, decision).Inc()
	a.webhook.last.WithLabelValues(label).SetToCurrentTime()
}

func (a *Agent) refused(status int, reason string, took time.Duration) {
	a.webhook.durations.WithLabelValues(decisionRefused).Observe(took.Seconds())
	a.webhook.refusals.WithLabelValues(code(status), a.webhook.reasons.value(reason)).Inc()
}

func (a *Agent) ownerProblem(manager core.Manager, problem string) {
	a.webhook.owners.WithLabelValues(a.managers.value(manager), a.webhook.problems.value(problem)).Inc()
}

func (a *Agent) panicked(place string) {
	a.webhook.panics.WithLabelValues(a.webhook.places.value(place)).Inc()
}

func (a *Agent) inFlight(delta int) { a.webhook.inFlight.Add(float64(delta)) }

func (a *Agent) handshakeFailed(cause string) {
	a.webhook.handshakes.WithLabelValues(a.webhook.causes.value(cause)).Inc()
}

// admissionBuckets are fine below 1 ms, the limit for the time that the agent may add to a write.
// They end at the default timeout of a webhook.
func admissionBuckets() []float64 {
	return []float64{25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1, 10}
}
