package main

import (
	"context"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/cause"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
)

// newReconciles registers the metric of all reconciles, and returns a function that counts those of
// one controller by their causes.
func newReconciles(registry prom.Registerer) (started func(controller core.Manager) func(cause.Cause), err error) {
	total := prom.NewCounterVec(prom.CounterOpts{
		Name: "lifecycle_manager_reconciles_total", Help: "Reconciles that were started, by cause.",
	}, []string{"controller", "cause"})
	started = func(controller core.Manager) func(cause.Cause) {
		return func(why cause.Cause) { total.WithLabelValues(string(controller), string(why)).Inc() }
	}
	return started, registry.Register(total)
}

var (
	kymaState = prom.NewDesc("lifecycle_manager_kyma_state", "Kymas, by state.", []string{"state"}, nil)
	// A user may enable any name. Therefore only the names in the catalog are labels.
	moduleState = prom.NewDesc("lifecycle_manager_module_state",
		"Enabled modules of all Kymas, by state. A name that the catalog does not have counts as unknown.",
		[]string{"module", "state"}, nil)
)

// states counts Kymas and modules at each scrape, from the cache.
type states struct{ cache client.Reader }

// Describe implements [prom.Collector].
func (states) Describe(descriptions chan<- *prom.Desc) {
	descriptions <- kymaState
	descriptions <- moduleState
}

// Collect implements [prom.Collector].
func (s states) Collect(metrics chan<- prom.Metric) {
	const timeout = 5 * time.Second

	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()

	kymas := &v1beta2.KymaList{}
	templates := &v1beta2.ModuleTemplateList{}
	for _, list := range []client.ObjectList{kymas, templates} {
		if err := s.cache.List(ctx, list); err != nil {
			metrics <- prom.NewInvalidMetric(kymaState, err)
			return
		}
	}

	ofKymas, ofModules := count(kymas, templates)
	for _, state := range []v1beta2.State{v1beta2.Ready, v1beta2.Processing, v1beta2.Error, v1beta2.Deleting} {
		metrics <- prom.MustNewConstMetric(kymaState, prom.GaugeValue, ofKymas[state], string(state))
	}

	for key, n := range ofModules {
		metrics <- prom.MustNewConstMetric(moduleState, prom.GaugeValue, n, string(key.module), string(key.state))
	}
}

type moduleKey struct {
	module v1beta2.ModuleName
	state  v1beta2.State
}

func count(
	kymas *v1beta2.KymaList, templates *v1beta2.ModuleTemplateList,
) (ofKymas map[v1beta2.State]float64, ofModules map[moduleKey]float64) {
	ofKymas = make(map[v1beta2.State]float64)
	ofModules = make(map[moduleKey]float64)
	known := make(map[v1beta2.ModuleName]bool)
	for i := range templates.Items {
		known[templates.Items[i].Spec.Module] = true
	}

	for i := range kymas.Items {
		ofKymas[kymas.Items[i].Status.State]++
		for _, module := range kymas.Items[i].Status.Modules {
			if !known[module.Name] {
				module.Name = "unknown"
			}
			ofModules[moduleKey{module.Name, module.State}]++
		}
	}
	return ofKymas, ofModules
}
