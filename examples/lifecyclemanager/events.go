package main

import (
	"errors"

	prom "github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/cause"
)

// events are those of one controller.
type events struct {
	// source hands them to the controller.
	source cause.Source
	// count counts the reconciles that they cause.
	count func(reconcile.Reconciler) reconcile.Reconciler
}

// newEvents returns the events of a manager. It also enqueues runtimes that are not fresh any more.
func newEvents(
	manager core.Manager, toRequests controllerruntime.MapFunc[ctrl.Request], watched *fleet.Fleet,
	reconciles *prom.CounterVec,
) events {
	counter := cause.New(reconciles, string(manager))
	source := counter.Source(controllerruntime.NewSource(toRequests, controllerruntime.SourceOptions{}))
	source.Follow(watched, manager)
	counter.Follow(toRequests, watched, manager)
	return events{source: source, count: counter.Count}
}

// measure adds the metrics of the listener, of the fleet, of the installations and of the Kymas to
// those of the operator.
func measure(
	watched *fleet.Fleet, installed func() fleet.Installations, kymas client.Reader,
) (*prometheus.Listener, error) {
	opts := prometheus.Options{
		Managers:   []core.Manager{kymaManager, moduleManager},
		PerRuntime: 100, // For the dashboards.
	}
	measured, err := prometheus.NewListener(metrics.Registry, opts)
	return measured, errors.Join(err, metrics.Registry.Register(states{kymas}),
		prometheus.RegisterFleet(metrics.Registry, watched, opts),
		prometheus.RegisterInstallations(metrics.Registry, installed, opts))
}
