package observability

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/test"
)

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

func readRules(t testing.TB) (text string, parsed rules) {
	t.Helper()
	text = read(t, folder+"/rules.yaml")
	if err := yaml.UnmarshalStrict([]byte(text), &parsed); err != nil {
		t.Fatal(err)
	}
	return text, parsed
}

func read(t testing.TB, file string) string {
	t.Helper()
	return string(test.Read(t, file))
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
