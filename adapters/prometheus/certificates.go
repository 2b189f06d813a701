package prometheus

import (
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
)

// certificates are the metrics of key material, which agent and listener have both.
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
		reloads:  f.counters("certificate_reloads_total", "New generations of key material that were taken into use.", labelUse),
		failures: f.counters("certificate_reload_failures_total",
			"Generations of key material that were refused. The last good one stays in use.", labelUse, labelProblem),
		expiry: f.gauges("certificate_expiry_timestamp_seconds", "When the certificate in use expires, in Unix time.", labelUse),
	}
}

func (c certificates) keyMaterial() collectors { return collectors{c.reloads, c.failures, c.expiry} }

// KeyMaterial returns the metrics of key material by what it is used for: "client", "server" or "ca".
func (c certificates) KeyMaterial(use string) KeyMaterial {
	use = c.uses.value(use)
	c.reloads.WithLabelValues(use)

	return KeyMaterial{use: use, metrics: c}
}

// KeyMaterial is the metrics of one set of key material. Its methods are hooks; they return at once and are safe for concurrent use.
type KeyMaterial struct {
	use     string
	metrics certificates
}

// Reloaded is the hook of that name of key material in files: a new generation is in use, with the end of its validity.
func (k KeyMaterial) Reloaded(notAfter time.Time) {
	k.metrics.reloads.WithLabelValues(k.use).Inc()
	k.Expires(notAfter)
}

// Refused is the hook of that name of key material in files: a new generation has a problem, and the last good one stays in use.
func (k KeyMaterial) Refused(problem string) {
	k.metrics.failures.WithLabelValues(k.use, k.metrics.problems.value(problem)).Inc()
}

// Expires notes when what is in use expires. No hook says so of the first generation, nor of a CA bundle. The zero time removes the series.
func (k KeyMaterial) Expires(notAfter time.Time) {
	if notAfter.IsZero() {
		k.metrics.expiry.DeleteLabelValues(k.use)

		return
	}

	k.metrics.expiry.WithLabelValues(k.use).Set(float64(notAfter.Unix()))
}
