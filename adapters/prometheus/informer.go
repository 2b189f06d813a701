package prometheus

import (
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Informer has the metrics of a source that watches, such as adapters/informer: its functions
// are hooks of that. Register it as a collector. Create it with [NewInformer]. It is safe for
// concurrent use.
type Informer struct {
	// Observed counts a change of an object of a manager, by its decision.
	Observed func(manager core.Manager, decision string)
	// Proved records that the API server showed that a watch works.
	Proved func(manager core.Manager)
	// Failed counts a failed attempt to establish a watch.
	Failed func(manager core.Manager, reason string)

	collectors

	changes  *prom.CounterVec
	failures *prom.CounterVec
	last     *prom.GaugeVec
	managers *managers

	decisions, reasons *vocabulary
}

// NewInformer returns metrics that are not registered yet. The error names each wrong option.
func NewInformer(opts Options) (*Informer, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	f := factory("agent")
	i := &Informer{
		changes: f.counters("informer_changes_total",
			"Changes of watched objects that the informer observed, by decision.", labelManager, labelDecision),
		failures: f.counters("informer_failures_total",
			"Failed attempts of the informer to establish a watch.", labelManager, labelReason),
		last: f.gauges("informer_last_proof_timestamp_seconds",
			"Time at which the API server last showed that a watch works, in Unix time.", labelManager),
		managers: newManagers(opts), decisions: new(vocabulary), reasons: new(vocabulary),
	}
	i.Observed, i.Proved, i.Failed = i.observed, i.proved, i.failed
	i.collectors = collectors{i.changes, i.failures, i.last}
	return i, nil
}

func (i *Informer) observed(manager core.Manager, decision string) {
	i.changes.WithLabelValues(i.managers.value(manager), i.decisions.value(decision)).Inc()
}

func (i *Informer) failed(manager core.Manager, reason string) {
	i.failures.WithLabelValues(i.managers.value(manager), i.reasons.value(reason)).Inc()
}

func (i *Informer) proved(manager core.Manager) {
	i.last.WithLabelValues(i.managers.value(manager)).SetToCurrentTime()
}
