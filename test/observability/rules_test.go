package observability

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestPrometheusRule fails when the resource of the Prometheus operator is stale.
func TestPrometheusRule(t *testing.T) {
	text, parsed := readRules(t)
	resource := prometheusRule(text)
	compare(t, folder+"/prometheusrule.yaml", resource)
	var wrapped struct {
		Spec rules `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(resource), &wrapped); err != nil || len(wrapped.Spec.all()) != len(parsed.all()) {
		t.Errorf("the resource has %d rules (%v), want %d", len(wrapped.Spec.all()), err, len(parsed.all()))
	}
}

// TestRulesNameWhatExists fails when an alert names a metric, a label or a value that no process
// has.
func TestRulesNameWhatExists(t *testing.T) {
	exists := newKnown(t)
	_, parsed := readRules(t)
	for _, rule := range parsed.all() {
		exists.check(t, rule.Alert, rule.Expr)
	}
}

// TestAlertsHaveCases fails when an alert has no case in which it fires, or none in which it is
// silent, or when a case has a series that no process has.
func TestAlertsHaveCases(t *testing.T) {
	var cases struct {
		Tests []struct {
			Name  string `json:"name"`
			Input []struct {
				Series string `json:"series"`
			} `json:"input_series"`
		} `json:"tests"`
	}
	exists, names := newKnown(t), map[string]bool{}
	for _, file := range []string{"/rules.test.yaml", "/outages.test.yaml"} {
		if err := yaml.Unmarshal([]byte(read(t, folder+file)), &cases); err != nil {
			t.Fatal(err)
		}
		for _, test := range cases.Tests {
			names[test.Name] = true
			for _, input := range test.Input {
				exists.check(t, test.Name, input.Series)
			}
		}
	}
	_, parsed := readRules(t)
	for _, rule := range parsed.all() {
		if !names[rule.Alert+" fires"] || !names[rule.Alert+" silent"] {
			t.Errorf("%s has no case in which it fires, or none in which it is silent", rule.Alert)
		}
	}
}

// TestInhibitions fails when a rule of Alertmanager names an alert that does not exist, or compares a
// label that one of its alerts does not have. The label of the runtime comes from Prometheus.
func TestInhibitions(t *testing.T) {
	_, parsed := readRules(t)
	expressions := map[string]string{}
	for _, rule := range parsed.all() {
		expressions[rule.Alert] = rule.Expr
	}
	name := regexp.MustCompile(`RuntimeWatcher[A-Za-z]+`)
	for _, rule := range readInhibitions(t) {
		matchers := strings.Join(slices.Concat(rule.Source, rule.Target), " ")
		for _, alert := range name.FindAllString(strings.ReplaceAll(matchers, "RuntimeWatcherAgent.+", ""), -1) {
			expression, found := expressions[alert]
			if !found {
				t.Errorf("no alert %s", alert)
			}
			for _, label := range rule.Equal {
				if label != "runtime" && !regexp.MustCompile(`by \([^)]*\b`+label+`\b`).MatchString(expression) {
					t.Errorf("%s has no label %s", alert, label)
				}
			}
		}
	}
}

// TestPromtool runs the cases.
func TestPromtool(t *testing.T) {
	promtool(t, filepath.Join(test.Root(), folder), "check", "rules", "rules.yaml")
	promtool(t, filepath.Join(test.Root(), folder), "test", "rules", "rules.test.yaml")
}

func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), findPromtool(t), args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func findPromtool(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		rig.Missing(t, "needs promtool (Debian: prometheus): %v", err)
	}
	return path
}

// Each kind of mistake must be found.
func TestMistakesAreFound(t *testing.T) {
	exists := newKnown(t)
	for _, expression := range []string{
		`runtime_watcher_agent_nothing > 0`,
		`runtime_watcher_agent_events_pending{state="lost"}`,
		`runtime_watcher_agent_canary_state{state="gone"}`,
		`sum by (cause) (runtime_watcher_agent_events_pending)`,
		`rate(runtime_watcher_agent_stalls_total`,
	} {
		found := &recorder{TB: t}
		exists.check(found, "a rule", expression)
		if found.errors == 0 {
			t.Errorf("no mistake was found in %s", expression)
		}
	}
}

// recorder counts errors, and does not fail its test.
type recorder struct {
	testing.TB

	errors int
}

func (r *recorder) Errorf(string, ...any) { r.errors++ }
func (r *recorder) Helper()               {}
