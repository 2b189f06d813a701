package prometheus

import (
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/keys"
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

func (c certificates) all() collectors {
	return collectors{c.reloads, c.failures, c.expiry, c.lifetime}
}

// KeyMaterial returns the metrics of key material for a use: "client", "server" or "ca".
func (c certificates) KeyMaterial(use string) KeyMaterial {
	use = c.uses.value(use)
	c.reloads.WithLabelValues(use)
	k := keyMaterial{use: use, metrics: c}
	return KeyMaterial{FilesHooks: keys.FilesHooks{Reloaded: k.reloaded, Refused: k.refused}, Expires: k.expires}
}

// KeyMaterial has the metrics of one set of key material. Its functions return at once and may be
// called concurrently.
type KeyMaterial struct {
	keys.FilesHooks
	// Expires sets expiry and lifetime of the certificate in use. A zero time removes its series:
	// notAfter the expiry, notBefore the lifetime. Call it for the first generation, for which no
	// hook is called.
	Expires func(notBefore, notAfter time.Time)
}

type keyMaterial struct {
	use     string
	metrics certificates
}

func (k keyMaterial) reloaded(notBefore, notAfter time.Time) {
	k.metrics.reloads.WithLabelValues(k.use).Inc()
	k.expires(notBefore, notAfter)
}

func (k keyMaterial) refused(problem string) {
	k.metrics.failures.WithLabelValues(k.use, k.metrics.problems.value(problem)).Inc()
}

func (k keyMaterial) expires(notBefore, notAfter time.Time) {
	k.set(k.metrics.expiry, notAfter, float64(notAfter.Unix()))
	k.set(k.metrics.lifetime, notBefore, notAfter.Sub(notBefore).Seconds())
}

// set removes the series if known is the zero time.
func (k keyMaterial) set(gauge *prom.GaugeVec, known time.Time, value float64) {
	if known.IsZero() {
		gauge.DeleteLabelValues(k.use)
		return
	}
	gauge.WithLabelValues(k.use).Set(value)
}
