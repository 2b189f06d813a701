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

	prom.Collector
}

// NewInformer returns metrics that are not registered yet. The error names each wrong option.
func NewInformer(opts Options) (*Informer, error) {
	f, err := newFactory("agent", opts)
	if err != nil {
		return nil, err
	}
	last := f.gauges("informer_last_proof_timestamp_seconds",
		"Time at which the API server last showed that a watch works, in Unix time.", labelManager)
	return &Informer{
		Observed: f.countBy("informer_changes_total",
			"Changes of watched objects that the informer observed, by decision.", labelDecision),
		Proved: func(manager core.Manager) { last.WithLabelValues(f.managers.value(manager)).SetToCurrentTime() },
		Failed: f.countBy("informer_failures_total",
			"Failed attempts of the informer to establish a watch.", labelReason),
		Collector: f,
	}, nil
}
