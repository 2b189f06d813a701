package observability

import (
	"encoding/json"
	"testing"
)

// dashboard is one file of Grafana.
type dashboard struct {
	file, title, description string
	variables                []variable
	panels                   []panel
}

// variable selects series. Its values are those of a label of a metric.
type variable struct{ name, metric, label string }

// panel is one diagram. Its width is 8 of 24 columns.
type panel struct {
	title, unit string
	stacked     bool
	queries     []query
}

type query struct{ expr, legend string }

// one returns the panel of one query.
func one(title, unit, expr, legend string) panel {
	return panel{title: title, unit: unit, queries: []query{{expr, legend}}}
}

// stack returns the panel of one query with series on top of each other.
func stack(title, unit, expr, legend string) panel {
	p := one(title, unit, expr, legend)
	p.stacked = true
	return p
}

// quantiles returns the panel of the p50 and p99 of a histogram.
func quantiles(title, metric, filter string) panel {
	of := func(q string) string {
		return "histogram_quantile(" + q + ", sum by (le) (rate(" + metric + "_bucket" + filter + "[5m])))"
	}
	return panel{title: title, unit: "s", queries: []query{{of("0.5"), "p50"}, {of("0.99"), "p99"}}}
}

func dashboards() []dashboard {
	return []dashboard{fleetDashboard(), runtimeDashboard(), agentDashboard(), controlPlaneDashboard()}
}

func fleetDashboard() dashboard {
	const filter = `{manager=~"$manager"}`
	by := func(metric, labels string) string {
		return "sum by (" + labels + ") (" + fleets + metric + filter + ")"
	}
	return dashboard{
		file: "fleet", title: "Runtime Watcher: fleet", description: "All runtimes, from the operators in the control plane.",
		variables: []variable{{"manager", fleets + "runtimes", "manager"}},
		panels: []panel{
			stack("Runtimes by state", "short", by("runtimes", "state"), "{{state}}"),
			stack("Degraded runtimes by reason", "short",
				`sum by (reason) (`+fleets+`runtimes{manager=~"$manager", state="degraded"})`, "{{reason}}"),
			one("Share of silent runtimes", "percentunit",
				`sum by (manager) (`+fleets+`runtimes{manager=~"$manager", state="stale"}) / `+by("runtimes", "manager"), "{{manager}}"),
			one("Events that wait in runtimes", "short", by("events_pending", "manager"), "{{manager}}"),
			one("Age of the oldest event", "s",
				"max by (manager) ("+fleets+"oldest_event_pending_seconds"+filter+")", "{{manager}}"),
			one("First expiry of a client certificate", "s",
				"min by (manager) ("+fleets+"first_certificate_expiry_timestamp_seconds"+filter+") - time()", "{{manager}}"),
			stack("Resyncs a second by cause", "ops",
				"sum by (cause) (rate("+fleets+"resyncs_total"+filter+"[5m]))", "{{cause}}"),
			one("Resyncs to come", "short", by("resyncs_pending", "manager"), "{{manager}}"),
			one("Requests without room in the fleet", "ops",
				"sum by (manager) (rate("+fleets+"untracked_total"+filter+"[5m]))", "{{manager}}"),
		},
	}
}

func runtimeDashboard() dashboard {
	const filter = `{runtime=~"$runtime"}`
	return dashboard{
		file: "runtime", title: "Runtime Watcher: one runtime",
		description: "One runtime, as the control plane sees it. It needs FleetOptions.PerRuntime.",
		variables:   []variable{{"runtime", fleets + "runtime_state", "runtime"}},
		panels: []panel{
			stack("State", "short", "max by (manager, state, reason) ("+fleets+"runtime_state"+filter+")",
				"{{manager}} {{state}} {{reason}}"),
			one("Time since the last request", "s",
				"time() - max by (manager) ("+fleets+"runtime_heard_timestamp_seconds"+filter+")", "{{manager}}"),
			one("Age of the oldest event", "s",
				"max by (manager) ("+fleets+"runtime_oldest_event_pending_seconds"+filter+")", "{{manager}}"),
		},
	}
}

func agentDashboard() dashboard {
	const filter, manager = `{namespace=~"$namespace"}`, `{namespace=~"$namespace", manager=~"$manager"}`
	rate := func(labels, metric, filter string) string {
		return "sum by (" + labels + ") (rate(" + metric + filter + "[5m]))"
	}
	age := func(metric string) string {
		return "time() - max by (pod, manager) (" + agents + metric + manager + ")"
	}
	return dashboard{
		file: "agent", title: "Runtime Watcher: agent", description: "The agents of one runtime, and its API server.",
		variables: []variable{
			{"namespace", agents + "build_info", "namespace"}, {"manager", agents + "events_accepted_total", "manager"},
		},
		panels: []panel{
			stack("Reviews by decision", "reqps", rate("decision", agents+"admission_reviews_total", manager), "{{decision}}"),
			quantiles("Time of a review", agents+"admission_duration_seconds", filter),
			one("Time since the last review", "s", age("admission_last_review_timestamp_seconds"), "{{pod}} {{manager}}"),
			{title: "Events by fate", unit: "ops", queries: []query{
				{rate("manager", agents+"events_accepted_total", manager), "accepted {{manager}}"},
				{rate("manager", agents+"events_delivered_total", manager), "delivered {{manager}}"},
				{rate("manager", agents+"events_coalesced_total", manager), "coalesced {{manager}}"},
				{rate("manager, reason", agents+"events_dropped_total", manager), "dropped {{manager}} {{reason}}"},
			}},
			one("Events that wait", "short", "sum by (pod, manager) ("+agents+"events_pending"+manager+")", "{{pod}} {{manager}}"),
			one("Age of the oldest event", "s",
				"max by (pod, manager) ("+agents+"oldest_event_pending_seconds"+manager+")", "{{pod}} {{manager}}"),
			stack("Events in attempts, by result", "ops", rate("result", agents+"forward_events_total", manager), "{{result}}"),
			quantiles("Time of an attempt", agents+"forward_duration_seconds", filter),
			one("Time since the last success", "s", age("forward_last_success_timestamp_seconds"), "{{pod}} {{manager}}"),
			one("Canary", "short", "max by (pod, state) ("+agents+"canary_state"+filter+")", "{{pod}} {{state}}"),
			one("Failed TLS handshakes by cause", "ops", rate("cause", agents+"tls_handshake_failures_total", filter), "{{cause}}"),
			one("Refused requests by reason", "ops", rate("code, reason", agents+"admission_refusals_total", filter), "{{code}} {{reason}}"),
			one("Certificates: time to expiry", "s",
				"min by (use) ("+agents+"certificate_expiry_timestamp_seconds"+filter+") - time()", "{{use}}"),
			one("Pauses and panics", "short", "sum by (pod) (increase("+agents+"stalls_total"+filter+"[5m]))", "pauses {{pod}}"),
			one("Writes without an answer of the webhook", "ops",
				`sum by (name) (rate(apiserver_admission_webhook_fail_open_count{name=~".*[.](operator|scale)[.]kyma-project[.]io"}[5m]))`, "{{name}}"),
			one("Memory", "bytes", "process_resident_memory_bytes"+filter+" and on (namespace, pod) "+agents+"build_info"+filter, "{{pod}}"),
			one("Processors", "short",
				"rate(process_cpu_seconds_total"+filter+"[5m]) and on (namespace, pod) "+agents+"build_info"+filter, "{{pod}}"),
			one("Goroutines", "short", "go_goroutines"+filter+" and on (namespace, pod) "+agents+"build_info"+filter, "{{pod}}"),
		},
	}
}

func controlPlaneDashboard() dashboard {
	const manager = `{manager=~"$manager"}`
	return dashboard{
		file: "control-plane", title: "Runtime Watcher: control plane",
		description: "Listener, consumer of NATS and controllers of the operators.",
		variables:   []variable{{"manager", listeners + "requests_total", "manager"}},
		panels: []panel{
			stack("Requests by answer", "reqps", "sum by (code) (rate("+listeners+"requests_total"+manager+"[5m]))", "{{code}}"),
			one("Refusals by reason", "reqps",
				`sum by (code, reason) (rate(`+listeners+`requests_total{manager=~"$manager", code!~"2.."}[5m]))`, "{{code}} {{reason}}"),
			quantiles("Time of a request", listeners+"request_duration_seconds", ""),
			one("Requests in progress", "short", "sum by (pod) ("+listeners+"requests_in_flight)", "{{pod}}"),
			stack("Requests by contract", "reqps", "sum by (contract) (rate("+listeners+"requests_total"+manager+"[5m]))", "{{contract}}"),
			one("Failed TLS handshakes by cause", "ops",
				"sum by (cause) (rate("+listeners+"tls_handshake_failures_total[5m]))", "{{cause}}"),
			one("Connections closed at the limit", "ops",
				"sum by (reason) (rate("+listeners+"connections_dropped_total[5m]))", "{{reason}}"),
			one("Certificates: time to expiry", "s",
				"min by (use) ("+listeners+"certificate_expiry_timestamp_seconds) - time()", "{{use}}"),
			one("Refused key material", "short",
				"sum by (use, problem) (increase("+listeners+"certificate_reload_failures_total[1h]))", "{{use}} {{problem}}"),
			stack("Messages of NATS by fate", "ops", "sum by (fate) (rate("+consumers+"messages_total"+manager+"[5m]))", "{{fate}}"),
			one("Messages of NATS that were not enqueued, by reason", "ops",
				`sum by (fate, reason) (rate(`+consumers+`messages_total{manager=~"$manager", fate!="enqueued"}[5m]))`, "{{fate}} {{reason}}"),
			quantiles("Time of a message of NATS", consumers+"message_duration_seconds", ""),
			one("Backlog of NATS: messages", "short", "max by (manager) ("+consumers+"backlog_messages"+manager+")", "{{manager}}"),
			one("Backlog of NATS: age of the oldest message", "s",
				"max by (manager) ("+consumers+"backlog_age_seconds"+manager+")", "{{manager}}"),
			one("Messages of NATS that are delivered again", "ops",
				"sum by (manager) (rate("+consumers+"redelivered_messages_total"+manager+"[5m]))", "{{manager}}"),
			stack("Reconciles by result", "ops",
				"sum by (controller, result) (rate(controller_runtime_reconcile_total[5m]))", "{{controller}} {{result}}"),
			one("Time of a reconcile, p99", "s",
				"histogram_quantile(0.99, sum by (le, controller) (rate(controller_runtime_reconcile_time_seconds_bucket[5m])))", "{{controller}}"),
			one("Depth of the workqueues", "short", "sum by (controller) (workqueue_depth)", "{{controller}}"),
			one("Leader", "short", "max by (pod, name) (leader_election_master_status)", "{{pod}} {{name}}"),
		},
	}
}

const (
	columns = 3
	width   = 8
	height  = 8
)

// object is a JSON object.
type object map[string]any

// render returns the file of Grafana.
func (d dashboard) render(t testing.TB) string {
	t.Helper()
	panels := make([]object, 0, len(d.panels))
	for i, p := range d.panels {
		panels = append(panels, p.render(i))
	}
	text, err := json.MarshalIndent(object{
		"uid": "runtime-watcher-" + d.file, "title": d.title, "description": d.description,
		"tags": []string{"runtime-watcher"}, "schemaVersion": 39, "editable": true, "graphTooltip": 1, "refresh": "30s",
		"time":       object{"from": "now-1h", "to": "now"},
		"templating": object{"list": d.templates()}, "panels": panels,
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

// source is the variable with the data source.
func source() object { return object{"type": "prometheus", "uid": "${datasource}"} }

func (d dashboard) templates() []object {
	all := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}}
	for _, v := range d.variables {
		all = append(all, object{
			"name": v.name, "type": "query", "datasource": source(), "refresh": 2, "includeAll": true, "multi": true,
			"allValue": ".*", "current": object{"text": "All", "value": "$__all"},
			"query": "label_values(" + v.metric + ", " + v.label + ")", "sort": 1,
		})
	}
	return all
}

func (p panel) render(i int) object {
	targets := make([]object, 0, len(p.queries))
	for n, q := range p.queries {
		targets = append(targets, object{
			"refId": string(rune('A' + n)), "expr": q.expr, "legendFormat": q.legend, "datasource": source(),
		})
	}
	custom := object{"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
	if p.stacked {
		custom["stacking"], custom["fillOpacity"] = object{"mode": "normal"}, 40
	}
	return object{
		"id": i + 1, "type": "timeseries", "title": p.title, "datasource": source(), "targets": targets,
		"gridPos":     object{"x": i % columns * width, "y": i / columns * height, "w": width, "h": height},
		"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0, "custom": custom}, "overrides": []object{}},
		"options": object{
			"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi", "sort": "desc"},
		},
	}
}
