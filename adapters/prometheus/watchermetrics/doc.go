// Package watchermetrics exposes metrics of an agent, of a listener, of a consumer and of a fleet
// to Prometheus. [Agent], [Listener] and [Consumer] have hooks for the parts that they measure. An
// outbox, a fleet and the installations of a control plane are read at each scrape. Nothing is
// global: the caller passes a [prom.Registerer], and serves it.
//
// docs/reference/metrics.md lists all metrics with their labels and values. A stranger can invent
// names of managers, as they come from a URL. So only [Options].MaxManagers of them get series of
// their own. All other labels have few values, which are constants in code, and are bounded as
// well.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package watchermetrics
