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
	}
}

func (c certificates) keyMaterial() collectors { return collectors{c.reloads, c.failures, c.expiry} }

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

// Reloaded counts a new generation, and sets its expiry.
func (k KeyMaterial) Reloaded(notAfter time.Time) {
	k.metrics.reloads.WithLabelValues(k.use).Inc()
	k.Expires(notAfter)
}

// Refused counts a new generation with a problem.
func (k KeyMaterial) Refused(problem string) {
	k.metrics.failures.WithLabelValues(k.use, k.metrics.problems.value(problem)).Inc()
}

// Expires sets the expiry of the certificate in use. The zero time removes the series. Call it for
// the first generation, for which no hook is called.
func (k KeyMaterial) Expires(notAfter time.Time) {
	if notAfter.IsZero() {
		k.metrics.expiry.DeleteLabelValues(k.use)
		return
	}
	k.metrics.expiry.WithLabelValues(k.use).Set(float64(notAfter.Unix()))
}
