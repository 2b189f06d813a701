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
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

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
	program, inhibitions := findPromtool(t), readInhibitions(t)
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
		first, last := steps[0], steps[len(steps)-1]
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
