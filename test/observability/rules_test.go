package observability

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
	exists, names := newKnown(t), map[string]bool{}
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
	For         string            `json:"for"`
	Keep        string            `json:"keep_firing_for"`
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
	var out strings.Builder
	out.WriteString(ruleHead + "  groups:\n")
	for line := range strings.Lines(groups) {
		out.WriteString("  " + line)
	}
	return out.String()
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
	if !selector.Matches(labels.Set(agent.Spec.Template.Labels)) || monitor.Namespace != agent.Namespace {
		t.Errorf("selector %s in %s, want the pods of the Deployment in %s", selector, monitor.Namespace, agent.Namespace)
	}
	ports := agent.Spec.Template.Spec.Containers[0].Ports
	for _, endpoint := range monitor.Spec.Endpoints {
		if !slices.ContainsFunc(ports, func(p corev1.ContainerPort) bool { return p.Name == endpoint.Port }) {
			t.Errorf("the container has no port %q", endpoint.Port)
		}
	}
}
