package observability

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestPrometheusRule fails when the resource of the Prometheus operator is stale.
func TestPrometheusRule(t *testing.T) {
	resource := folder + "/prometheusrule.yaml"
	compare(t, resource, prometheusRule(read(t, folder+"/rules.yaml")))
	wrapped := readYAML[struct {
		Spec rules `json:"spec"`
	}](t, resource)
	if have, want := len(wrapped.Spec.all()), len(alerts(t)); have != want {
		t.Errorf("the resource has %d rules, want %d", have, want)
	}
}

// TestAlertsHaveCases fails when an alert has no case in which it fires, or none in which it is
// silent, or when a case has a series that no process has.
func TestAlertsHaveCases(t *testing.T) {
	type cases struct {
		Tests []struct {
			Name  string `json:"name"`
			Input []struct {
				Series string `json:"series"`
			} `json:"input_series"`
		} `json:"tests"`
	}
	exists := newKnown(t)
	names := map[string]bool{}
	for _, file := range []string{"/rules.test.yaml", "/outages.test.yaml"} {
		for _, test := range readYAML[cases](t, folder+file).Tests {
			names[test.Name] = true
			for _, input := range test.Input {
				exists.check(t, test.Name, input.Series)
			}
		}
	}
	for _, rule := range alerts(t) {
		if !names[rule.Alert+" fires"] || !names[rule.Alert+" silent"] {
			t.Errorf("%s has no case in which it fires, or none in which it is silent", rule.Alert)
		}
	}
}

// TestInhibitions fails when a rule of Alertmanager names an alert that does not exist, or compares a
// label that one of its alerts does not have. The label of the runtime comes from Prometheus.
func TestInhibitions(t *testing.T) {
	expressions := map[string]string{}
	for _, rule := range alerts(t) {
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
	t.Parallel()
	testRules(t, filepath.Join(test.Root(), folder), "rules.test.yaml")
}

func testRules(t *testing.T, dir, file string) {
	t.Helper()
	test.NoticeDocuments(t)

	cmd := exec.CommandContext(t.Context(), findPromtool(t), "test", "rules", file)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool test rules %s: %v\n%s", file, err, out)
	}
}

func findPromtool(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		lab.Missing(t, "needs promtool (Debian: prometheus): %v", err)
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
		found := &lab.Complaints{TB: t}
		exists.check(found, "a rule", expression)
		if found.N == 0 {
			t.Errorf("no mistake was found in %s", expression)
		}
	}
}

// folder has the alerts and the dashboards.
const folder = "deploy/observability"

// rules is the content of rules.yaml.
type rules struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func (r rules) all() (all []rule) {
	for _, group := range r.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// alerts returns the alerts of rules.yaml.
func alerts(t testing.TB) []rule {
	t.Helper()
	return readYAML[rules](t, folder+"/rules.yaml").all()
}

func read(t testing.TB, file string) string {
	t.Helper()
	return string(test.Read(t, file))
}

func readYAML[T any](t testing.TB, file string) (value T) {
	t.Helper()
	lab.NoError(t, yaml.Unmarshal(test.Read(t, file), &value))
	return value
}

const ruleHead = `# Written from rules.yaml by go test ./test/observability -run TestPrometheusRule -update. Do not edit.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: runtime-watcher
  labels:
    app.kubernetes.io/name: runtime-watcher
spec:
`

// prometheusRule wraps the groups of rules.yaml in the resource of the Prometheus operator.
func prometheusRule(text string) string {
	_, groups, _ := strings.Cut(text, "\ngroups:\n")
	return ruleHead + "  groups:\n  " + strings.ReplaceAll(strings.TrimSuffix(groups, "\n"), "\n", "\n  ") + "\n"
}

// TestPodMonitor fails when the PodMonitor selects no pod of the manifests, or a port that they do
// not have.
func TestPodMonitor(t *testing.T) {
	type podMonitor struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector  metav1.LabelSelector `json:"selector"`
			Endpoints []struct {
				Port string `json:"port"`
			} `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}
	monitor := readYAML[podMonitor](t, folder+"/podmonitor.yaml")
	agent := readYAML[appsv1.Deployment](t, "controlplane/config/agent/deployment.yaml")
	selector := lab.Must(metav1.LabelSelectorAsSelector(&monitor.Spec.Selector))
	if !selector.Matches(k8slabels.Set(agent.Spec.Template.Labels)) || monitor.Namespace != agent.Namespace {
		t.Errorf("selector %s in %s, want the pods of the Deployment in %s", selector, monitor.Namespace, agent.Namespace)
	}
	ports := agent.Spec.Template.Spec.Containers[0].Ports
	for _, endpoint := range monitor.Spec.Endpoints {
		if !slices.ContainsFunc(ports, func(p corev1.ContainerPort) bool { return p.Name == endpoint.Port }) {
			t.Errorf("the container has no port %q", endpoint.Port)
		}
	}
}

// inhibition is a rule of inhibit.yaml.
type inhibition struct {
	Source []string `json:"source_matchers"`
	Target []string `json:"target_matchers"`
	Equal  []string `json:"equal"`
}

func readInhibitions(t *testing.T) []inhibition {
	t.Helper()
	var file struct {
		Rules []inhibition `json:"inhibit_rules"`
	}
	lab.NoError(t, yaml.UnmarshalStrict(test.Read(t, folder+"/inhibit.yaml"), &file))
	return file.Rules
}

// mutes decides as Alertmanager does: the values of Equal are the same, a missing label is as an
// empty one, and of two alerts that match both sides none mutes the other.
func (i inhibition) mutes(t *testing.T, source, target labels.Labels) bool {
	t.Helper()
	return matches(t, i.Source, source) && matches(t, i.Target, target) &&
		(!matches(t, i.Source, target) || !matches(t, i.Target, source)) &&
		!slices.ContainsFunc(i.Equal, func(label string) bool { return source.Get(label) != target.Get(label) })
}

func matches(t *testing.T, all []string, alert labels.Labels) bool {
	t.Helper()
	matchers := lab.Must(parser.ParseMetricSelector("{" + strings.Join(all, ",") + "}"))
	return !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(alert.Get(m.Name)) })
}

// step is the time between two evaluations of the cases that last for a day. Others have one each
// minute.
var step = flag.Int("step", 3, "minutes between two evaluations of outages that last for a day")

// TestOneOutageIsOnePage plays each case of outages.test.yaml, evaluates inhibit.yaml in each step,
// and wants one page, from the start of the outage to its end.
func TestOneOutageIsOnePage(t *testing.T) {
	type cases struct {
		Tests []map[string]any `json:"tests"`
	}
	program := findPromtool(t)
	inhibitions := readInhibitions(t)
	for _, outage := range readYAML[cases](t, folder+"/outages.test.yaml").Tests {
		page, _, _ := strings.Cut(fmt.Sprint(outage["name"]), " ")
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			pages, muted := map[string][]int{}, 0 // Steps by alert.
			steps, minutes := play(t, program, outage)
			for n, firing := range steps {
				for _, alert := range firing {
					mutes := func(source labels.Labels) bool {
						return slices.ContainsFunc(inhibitions, func(i inhibition) bool { return i.mutes(t, source, alert) })
					}
					switch {
					case slices.ContainsFunc(firing, mutes):
						muted++
					case alert.Get("severity") == "critical":
						pages[alert.String()] = append(pages[alert.String()], n)
					}
				}
			}
			judge(t, page, pages, muted, minutes)
		})
	}
}

// judge fails unless the alert want alone pages, in each step between its first and its last one. A
// step has so many minutes.
func judge(t *testing.T, want string, pages map[string][]int, muted, minutes int) {
	t.Helper()
	const begins, soon = 30, 10 // minutes
	if want == "nothing" && len(pages) == 0 {
		return
	}
	if len(pages) != 1 || muted == 0 {
		t.Errorf("%d alerts page, want %s alone. %d times an alert was inhibited", len(pages), want, muted)
	}
	for alert, steps := range pages {
		first := steps[0]
		last := steps[len(steps)-1]
		t.Logf("%s pages in minutes %d to %d of the case", alert, first*minutes, last*minutes)
		if !strings.Contains(alert, `"`+want+`"`) || first*minutes >= begins+soon+minutes || last-first != len(steps)-1 {
			t.Errorf("%s: want %s, within %d minutes and without a gap", alert, want, soon)
		}
	}
}

// play runs a case with promtool, and returns the alerts that fire in each step of so many minutes.
// They have the name of the pod as label of the runtime, which the Prometheus of a runtime adds.
func play(t *testing.T, program string, outage map[string]any) (steps [][]labels.Labels, minutes int) {
	t.Helper()
	expressions, _ := outage["promql_expr_test"].([]any)
	var end int
	if _, err := fmt.Sscanf(fmt.Sprint(expressions), "[map[eval_time:%dm", &end); err != nil {
		t.Fatalf("%v: %v", expressions, err)
	}
	const probe, day = `ALERTS{alertstate="firing"} + 0 * %d`, 24 * 60
	if minutes = 1; end > day {
		minutes = *step
	}
	for n := range end / minutes {
		expressions = append(expressions, map[string]any{
			"expr": fmt.Sprintf(probe, n), "eval_time": fmt.Sprintf("%dm", n*minutes),
		})
	}
	outage["promql_expr_test"] = expressions
	text, err := yaml.Marshal(map[string]any{
		"rule_files":          []string{filepath.Join(test.Root(), folder, "rules.yaml")},
		"evaluation_interval": fmt.Sprintf("%dm", minutes),
		"tests":               []any{outage},
	})
	path := filepath.Join(t.TempDir(), "outage.yaml")
	if err != nil || os.WriteFile(path, text, 0o600) != nil {
		t.Fatal("the case was not written", err)
	}
	// It ends with an error, because probes return alerts.
	out, _ := exec.CommandContext(t.Context(), program, "test", "rules", path).CombinedOutput()
	if strings.Contains(string(out), "count_over_time") {
		t.Errorf("the expression of the case does not hold:\n%.2000s", out)
	}
	steps = make([][]labels.Labels, end/minutes)
	failed := regexp.MustCompile(`firing\\"} \+ 0 \* (\d+)", time.*\s+exp: nil\s+got: (.*)`)
	for _, failed := range failed.FindAllStringSubmatch(string(out), -1) {
		var n int
		_, _ = fmt.Sscan(failed[1], &n)
		for _, sample := range regexp.MustCompile(`{[^}]*}`).FindAllString(failed[2], -1) {
			alert := lab.Must(parser.ParseMetric(sample))
			steps[n] = append(steps[n], labels.NewBuilder(alert).Set("runtime", alert.Get("pod")).Labels())
		}
	}
	return steps, minutes
}
