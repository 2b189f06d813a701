package watchermetrics

import (
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/keys"
)

type certificates func(use string) KeyMaterial

func newCertificates(f *factory) certificates {
	var uses, problems vocabulary
	reloads := f.addCounters("certificate_reloads_total",
		"Generations of key material that were loaded.", labelUse)
	failures := f.addCounters("certificate_reload_failures_total",
		"Generations of key material that were rejected, or that expired while they were in use.",
		labelUse, labelProblem)
	expiry := f.addGauges("certificate_expiry_timestamp_seconds",
		"Expiry of the certificate in use, in Unix time.", labelUse)
	lifetime := f.addGauges("certificate_lifetime_seconds",
		"Total lifetime of the certificate in use. Bundles of CAs have no such series.", labelUse)

	return func(use string) KeyMaterial {
		use = uses.takeValue(use)
		reloads.WithLabelValues(use)
		expires := func(g keys.Generation) {
			set(expiry, use, g.NotAfter, float64(g.NotAfter.Unix()))
			set(lifetime, use, g.NotBefore, g.NotAfter.Sub(g.NotBefore).Seconds())
		}
		reloaded := func(g keys.Generation) {
			reloads.WithLabelValues(use).Inc()
			expires(g)
		}
		refused := func(r keys.Refusal) { failures.WithLabelValues(use, problems.takeValue(string(r.Problem))).Inc() }

		return KeyMaterial{FilesHooks: keys.FilesHooks{Reloaded: reloaded, Refused: refused}, Expires: expires}
	}
}

// KeyMaterial returns the metrics of key material for a use: "client", "server" or "ca".
func (of certificates) KeyMaterial(use string) KeyMaterial { return of(use) }

// KeyMaterial contains the metrics of one set of key material. Its functions return immediately and
// may be called concurrently.
type KeyMaterial struct {
	keys.FilesHooks
	// Expires sets the expiry and the lifetime of the certificate in use. A zero NotAfter removes
	// the series of the expiry, and a zero NotBefore the series of the lifetime. Call Expires for
	// the first generation, because no hook is called for it.
	Expires func(keys.Generation)
}

// set removes the series of a use if known is the zero time.
func set(gauge *prom.GaugeVec, use string, known time.Time, value float64) {
	if known.IsZero() {
		gauge.DeleteLabelValues(use)
		return
	}
	gauge.WithLabelValues(use).Set(value)
}
