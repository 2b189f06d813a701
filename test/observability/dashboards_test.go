package observability

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/runtime-watcher/runtime-watcher/test"
)

// dashboard is a file of Grafana, as far as it asks Prometheus and has a form.
type dashboard struct {
	Panels      []panel `json:"panels"`
	Annotations struct {
		List []target `json:"list"`
	} `json:"annotations"`
	Templating struct {
		List []struct {
			Name  string `json:"name"`
			Type  string `json:"type"`
			Query string `json:"query"`
		} `json:"list"`
	} `json:"templating"`
}

type target struct {
	Expr string `json:"expr"`
}

type link struct {
	URL string `json:"url"`
}

type panel struct {
	Title       string   `json:"title"`
	Type        string   `json:"type"`
	Description string   `json:"description"`
	Targets     []target `json:"targets"`
	GridPos     struct {
		Y int `json:"y"`
	} `json:"gridPos"`
	Links       []link `json:"links"`
	FieldConfig struct {
		Defaults struct {
			Unit       string `json:"unit"`
			Thresholds struct {
				Steps []any `json:"steps"`
			} `json:"thresholds"`
			Mappings []any `json:"mappings"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

// dashboards returns those of all files, by the name of the file.
func dashboards(t testing.TB) map[string]*dashboard {
	t.Helper()
	test.NoticeDocuments(t)

	files, err := filepath.Glob(filepath.Join(test.Root(), folder, "dashboards", "*.json"))
	if err != nil || len(files) != 4 {
		t.Fatalf("%d dashboards, want 4: %v", len(files), err)
	}
	all := map[string]*dashboard{}
	for _, file := range files {
		d := &dashboard{}
		text, err := os.ReadFile(file)
		if err := errors.Join(err, json.Unmarshal(text, d)); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[filepath.Base(file)] = d
	}
	return all
}

// TestDashboards fails when a panel lacks a part of its form.
func TestDashboards(t *testing.T) {
	runbooks := runbooksOf(t)
	for file, d := range dashboards(t) {
		for i := range d.Panels {
			for _, fault := range faults(t, runbooks, &d.Panels[i]) {
				t.Errorf("%s: %s: %s", file, d.Panels[i].Title, fault)
			}
		}
	}
}

// TestExpressions fails when an alert, a panel, a variable or an annotation names a metric, a label or a value that no
// process has, or when a metric is neither on a dashboard nor in an alert.
func TestExpressions(t *testing.T) {
	exists, used, all := newKnown(t), map[string]bool{}, map[string][]string{} // By their place.
	for _, rule := range alerts(t) {
		all[rule.Alert] = []string{rule.Expr}
	}
	const least = 80
	checked := -len(all)
	for file, d := range dashboards(t) {
		all[file] = d.expressions(t)
	}
	for place, expressions := range all {
		checked += len(expressions)
		for _, expression := range expressions {
			exists.check(t, place, expression)
			for _, name := range metricsOf(t, expression) {
				used[name] = true
			}
		}
	}
	if checked < least {
		t.Errorf("%d expressions of dashboards, want at least %d", checked, least)
	}
	for _, m := range catalog(t) {
		if !slices.ContainsFunc(suffixes(m.kind), func(suffix string) bool { return used[m.name+suffix] }) {
			t.Errorf("%s is neither on a dashboard nor in an alert", m.name)
		}
	}
}

// expressions returns those of panels, annotations and variables. A variable has the values of a
// label.
func (d *dashboard) expressions(t testing.TB) (all []string) {
	t.Helper()
	values := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
	for _, v := range d.Templating.List {
		if v.Type == "datasource" {
			continue
		}
		match := values.FindStringSubmatch(v.Query)
		if match == nil {
			t.Fatalf("variable %s: %q, want label_values(metric, label)", v.Name, v.Query)
		}
		all = append(all, "sum by ("+match[2]+") ("+match[1]+")")
	}
	targets := d.Annotations.List
	for i := range d.Panels {
		targets = append(targets, d.Panels[i].Targets...)
	}
	for _, target := range targets {
		all = append(all, target.Expr)
	}
	return all
}

// metricsOf returns the metrics of an expression.
func metricsOf(t testing.TB, expression string) (names []string) {
	t.Helper()
	parsed, err := parser.ParseExpr(expression)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	for _, selector := range parser.ExtractSelectors(parsed) {
		names = append(names, metricOf(selector))
	}
	return names
}

// runbooksOf returns the runbooks of the alerts with a metric, by the metric.
func runbooksOf(t testing.TB) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, rule := range alerts(t) {
		for _, name := range metricsOf(t, rule.Expr) {
			if url := rule.Annotations["runbook_url"]; !slices.Contains(all[name], url) {
				all[name] = append(all[name], url)
			}
		}
	}
	return all
}

// faults returns the parts of its form that a panel lacks. A panel needs a link to each runbook of
// its metrics.
func faults(t testing.TB, runbooks map[string][]string, p *panel) (all []string) {
	t.Helper()
	look := p.FieldConfig.Defaults
	if !strings.HasSuffix(p.Description, ".") || p.Title == "" || look.Unit == "" || len(p.Targets) == 0 {
		all = append(all, "want a title, a unit, a query, and a description that is a sentence")
	}
	if p.Type == "stat" && len(look.Thresholds.Steps) < 3 || p.Type == "state-timeline" && len(look.Mappings) == 0 {
		all = append(all, "want the thresholds of a stat, and the names of the states of a timeline")
	}
	for _, target := range p.Targets {
		names := metricsOf(t, target.Expr)
		ours := slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "runtime_watcher_") })
		if !ours && !strings.HasPrefix(names[0], "apiserver_") && names[0] != alertsMetric {
			all = append(all, "shows each process of the cluster, want ours: "+target.Expr)
		}
		for _, name := range names {
			for _, url := range runbooks[name] {
				if !slices.Contains(p.Links, link{url}) {
					all = append(all, "want a link to "+url)
				}
			}
		}
	}
	return all
}

// TestAcceptedRequests: what is no error for the alert is no failure on the dashboard.
func TestAcceptedRequests(t *testing.T) {
	reasons := regexp.MustCompile(`reason!~"([^"]+)"`)
	found := map[string]string{}
	for _, rule := range alerts(t) {
		if rule.Alert == "RuntimeWatcherListenerErrors" {
			found["alert"] = reasons.FindString(rule.Expr)
		}
	}
	for _, p := range dashboards(t)["control-plane.json"].Panels {
		if p.Title == "Accepted requests" {
			found["panel"] = reasons.FindString(p.Targets[0].Expr)
		}
	}
	if found["alert"] == "" || found["alert"] != found["panel"] {
		t.Errorf("reasons that are left out: %q", found)
	}
}

func TestFaultsAreFound(t *testing.T) {
	const sentence, gauge, foreign = "A sentence.", "runtime_watcher_listener_requests_in_flight", "sum(workqueue_depth)"
	runbooks := runbooksOf(t)
	for _, row := range []struct {
		faults            int
		kind, description string
		expressions       []target
	}{
		{2, "", sentence, []target{{"runtime_watcher_agent_build_info"}}},
		{1, "", "", []target{{gauge}}},
		{0, "", sentence, []target{{gauge}}},
		{1, "stat", sentence, []target{{gauge}}},
		{1, "state-timeline", sentence, []target{{gauge}}},
		{1, "", sentence, []target{{foreign}}},
		{0, "", sentence, []target{{"workqueue_depth and on (job) " + gauge}}},
		{0, "", sentence, []target{{`ALERTS{alertname=~"RuntimeWatcher.+"}`}}},
		{1, "", sentence, []target{{gauge}, {foreign}}},
	} {
		p := &panel{Title: "a", Type: row.kind, Description: row.description, Targets: row.expressions}
		p.FieldConfig.Defaults.Unit = "s"
		if found := faults(t, runbooks, p); len(found) != row.faults {
			t.Errorf("%+v: faults %q, want %d", row, found, row.faults)
		}
	}
}

// TestFirstScreen: without scrolling, the fleet has counts, the runtimes that are not fresh, and
// since when.
func TestFirstScreen(t *testing.T) {
	const rows = 12 // Of 38 pixels each.
	kinds := map[string]int{}
	for _, p := range dashboards(t)["fleet.json"].Panels {
		if p.GridPos.Y < rows {
			kinds[p.Type]++
		}
	}
	if kinds["stat"] != 6 || kinds["table"] != 1 || kinds["state-timeline"] != 1 {
		t.Errorf("kinds %v of the first %d rows, want six counts, a table and a timeline", kinds, rows)
	}
}

// known has the labels of each metric, and the values of those labels that have a fixed list.
type known struct {
	labels map[string][]string
	words  vocabulary
}

// targetLabels are added by a scrape.
var targetLabels = []string{"cluster", "runtime", "namespace", "pod", "instance", "job", "le"}

// alertsMetric is that of Prometheus itself for each alert that waits or fires.
const alertsMetric = "ALERTS"

func newKnown(t testing.TB) known {
	t.Helper()
	k := known{labels: foreign(), words: newVocabulary(t)}
	k.labels[alertsMetric] = []string{"alertname", "alertstate"}
	k.labels["up"] = nil // Prometheus itself has it for each target.
	for _, m := range catalog(t) {
		for _, suffix := range suffixes(m.kind) {
			k.labels[m.name+suffix] = m.labels
		}
	}
	return k
}

func suffixes(kind string) []string {
	if kind == "histogram" {
		return []string{"_bucket", "_sum", "_count"}
	}
	return []string{""}
}

// foreign are the metrics of others that alerts and dashboards use. TestLive finds each of them in
// a real process.
func foreign() map[string][]string {
	return map[string][]string{
		"apiserver_admission_webhook_fail_open_count":                   {"name", "type"},
		"apiserver_admission_webhook_admission_duration_seconds_bucket": {"name", "type", "operation", "rejected"},
		"controller_runtime_reconcile_errors_total":                     {"controller"},
		"controller_runtime_reconcile_total":                            {"controller", "result"},
		"controller_runtime_reconcile_time_seconds_bucket":              {"controller"},
		"workqueue_depth":               {"controller", "name", "priority"},
		"leader_election_master_status": {"name"},
		"process_resident_memory_bytes": nil,
		"process_cpu_seconds_total":     nil,
		"process_start_time_seconds":    nil,
		"go_goroutines":                 nil,
	}
}

// check reports unknown metrics, labels and label values of an expression.
func (k known) check(t testing.TB, place, expression string) {
	t.Helper()
	parsed, err := parser.ParseExpr(expression)
	if err != nil {
		t.Errorf("%s: %v", place, err)
		return
	}
	names := slices.Clone(targetLabels) // And those of the metrics.
	for _, selector := range parser.ExtractSelectors(parsed) {
		k.checkSelector(t, place, selector)
		names = append(names, k.labels[metricOf(selector)]...)
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		for _, label := range grouping(node) {
			if !slices.Contains(names, label) {
				t.Errorf("%s: groups by %q, which none of its metrics has", place, label)
			}
		}
		return nil
	})
}

func grouping(node parser.Node) []string {
	switch n := node.(type) {
	case *parser.AggregateExpr:
		return n.Grouping
	case *parser.BinaryExpr:
		if n.VectorMatching != nil {
			return slices.Concat(n.VectorMatching.MatchingLabels, n.VectorMatching.Include)
		}
	}
	return nil
}

func metricOf(selector []*labels.Matcher) string {
	for _, matcher := range selector {
		if matcher.Name == labels.MetricName {
			return matcher.Value
		}
	}
	return ""
}

func (k known) checkSelector(t testing.TB, place string, selector []*labels.Matcher) {
	t.Helper()
	name := metricOf(selector)
	names, ok := k.labels[name]
	if !ok {
		t.Errorf("%s: no process has the metric %q", place, name)
		return
	}
	for _, matcher := range selector {
		switch {
		case matcher.Name == labels.MetricName, slices.Contains(targetLabels, matcher.Name):
		case !slices.Contains(names, matcher.Name):
			t.Errorf("%s: metric %s has no label %q", place, name, matcher.Name)
		default:
			k.checkValues(t, place, name, matcher)
		}
	}
}

// checkValues checks the values of a label with a fixed list. A pattern is a list of alternatives.
func (k known) checkValues(t testing.TB, place, name string, matcher *labels.Matcher) {
	t.Helper()
	values := k.words.of(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"), matcher.Name)
	for value := range strings.SplitSeq(matcher.Value, "|") {
		if values != nil && !slices.Contains(values, value) && !strings.HasPrefix(value, "$") {
			t.Errorf("%s: label %s of %s never has the value %q", place, matcher.Name, name, value)
		}
	}
}
