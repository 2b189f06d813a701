package observability

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// known has the labels of each metric, and the values of those labels that have a fixed list.
type known struct {
	labels map[string][]string
	words  vocabulary
}

// targetLabels are added by a scrape.
var targetLabels = []string{"namespace", "pod", "instance", "job", "le"}

// alertsMetric is that of Prometheus itself for each alert that waits or fires.
const alertsMetric = "ALERTS"

func newKnown(t testing.TB) known {
	t.Helper()
	k := known{labels: foreign(), words: newVocabulary(t)}
	k.labels[alertsMetric] = []string{"alertname", "alertstate"}
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
