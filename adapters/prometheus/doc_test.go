package prometheus_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
)

// TestDocListsEveryMetric compares the tables of the package comment with what is exposed: name,
// labels and type.
func TestDocListsEveryMetric(t *testing.T) {
	agent, agentReg := newAgent(t, prometheus.Options{})
	useAgent(t, agent)
	listener, listenerReg := registered(t, prometheus.NewListener, prometheus.Options{})
	useListener(listener)
	consumer, consumerReg := registered(t, prometheus.NewConsumer, prometheus.Options{})
	consumer.Concluded("kyma", "enqueued", "", 0)
	fleetReg := fleetRegistry(t, useFleet(t), prometheus.Options{PerRuntime: 10})
	installationReg := installationRegistry(t)
	exposed := slices.Concat(rows(t, agentReg), rows(t, listenerReg), rows(t, consumerReg), rows(t, fleetReg), rows(t, installationReg))
	slices.Sort(exposed)
	if diff := cmp.Diff(documented(t), exposed); diff != "" {
		t.Errorf("doc.go and what is exposed differ (-doc +exposed):\n%s", diff)
	}
}

func documented(t *testing.T) []string {
	t.Helper()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^//\t(runtime_watcher_\w+)(?:\{([\w,]+)\})? +(\w+) +\S`)
	var found []string
	for _, match := range row.FindAllStringSubmatch(string(doc), -1) {
		labels := strings.Split(match[2], ",")
		slices.Sort(labels)
		found = append(found, match[1]+"{"+strings.Join(labels, ",")+"} "+match[3])
	}
	slices.Sort(found)
	return found
}

// rows has what is exposed. Names and help texts follow the conventions.
func rows(t *testing.T, reg *prom.Registry) []string {
	t.Helper()
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := make([]string, 0, len(families))
	for _, family := range families {
		found = append(found, family.GetName()+"{"+labelNames(family)+"} "+strings.ToLower(family.GetType().String()))
	}
	return found
}

func labelNames(family *dto.MetricFamily) string {
	var names []string
	for _, label := range family.GetMetric()[0].GetLabel() {
		names = append(names, label.GetName())
	}
	return strings.Join(names, ",")
}
