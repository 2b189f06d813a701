// Package watchermetrics exposes metrics of an agent, of a listener, of a consumer and of a fleet
// to Prometheus. [Agent], [Listener] and [Consumer] provide hooks for the parts that they measure.
// An outbox, a fleet and the installations of a control plane are read at each scrape. Nothing is
// global: the caller passes a [prom.Registerer] and serves its metrics.
//
// docs/reference/metrics.md lists all metrics with their labels and values. An unknown sender can
// invent names of managers, because they come from a URL. Therefore only [Options].MaxManagers
// managers get separate series. All other labels are also bounded: their few values are constants
// in code.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package watchermetrics
