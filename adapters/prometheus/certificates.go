package prometheus

import (
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
)

// certificates are the metrics of key material, which agent and listener share.
type certificates struct {
	uses, problems *vocabulary

	reloads  *prom.CounterVec
	failures *prom.CounterVec
	expiry   *prom.GaugeVec
	lifetime *prom.GaugeVec
}

func newCertificates(f factory) certificates {
	return certificates{
		uses:     new(vocabulary),
		problems: new(vocabulary),
		reloads: f.counters("certificate_reloads_total",
			"New generations of key material that were taken into use.", labelUse),
		failures: f.counters("certificate_reload_failures_total",
			"Generations of key material that were refused. The last good one stays in use.", labelUse, labelProblem),
		expiry: f.gauges("certificate_expiry_timestamp_seconds",
			"When the certificate in use expires, in Unix time.", labelUse),
		lifetime: f.gauges("certificate_lifetime_seconds",
			"How long the certificate in use is valid in all. There is none for a bundle of CAs.", labelUse),
	}
}

func (c certificates) keyMaterial() collectors {
	return collectors{c.reloads, c.failures, c.expiry, c.lifetime}
}

// KeyMaterial returns the metrics of key material for a use: "client", "server" or "ca".
func (c certificates) KeyMaterial(use string) KeyMaterial {
	use = c.uses.value(use)
	c.reloads.WithLabelValues(use)
	return KeyMaterial{use: use, metrics: c}
}

// KeyMaterial has the metrics of one set of key material. Its methods are hooks. They return at
// once and may be called concurrently.
type KeyMaterial struct {
	use     string
	metrics certificates
}

// Reloaded counts a new generation, and sets its validity as Expires does.
func (k KeyMaterial) Reloaded(notBefore, notAfter time.Time) {
	k.metrics.reloads.WithLabelValues(k.use).Inc()
	k.Expires(notBefore, notAfter)
}

// Refused counts a new generation with a problem.
func (k KeyMaterial) Refused(problem string) {
	k.metrics.failures.WithLabelValues(k.use, k.metrics.problems.value(problem)).Inc()
}

// Expires sets expiry and lifetime of the certificate in use. A zero time removes its series:
// notAfter the expiry, notBefore the lifetime. Call it for the first generation, for which no hook
// is called.
func (k KeyMaterial) Expires(notBefore, notAfter time.Time) {
	k.set(k.metrics.expiry, notAfter, float64(notAfter.Unix()))
	k.set(k.metrics.lifetime, notBefore, notAfter.Sub(notBefore).Seconds())
}

// set removes the series if known is the zero time.
func (k KeyMaterial) set(gauge *prom.GaugeVec, known time.Time, value float64) {
	if known.IsZero() {
		gauge.DeleteLabelValues(k.use)
		return
	}
	gauge.WithLabelValues(k.use).Set(value)
}
