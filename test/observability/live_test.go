package observability

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	prom "github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

const (
	manager = "kyma"
	runtime = "runtime-1"
)

// scene is an operator and an agent, with their metrics.
type scene struct {
	plane    *apiserver.ControlPlane
	fleet    *fleet.Fleet
	registry *prom.Registry
	agent    *lab.Agent
}

// newScene makes one write that the agent reviews, and one that passes without an answer.
func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{
		plane: lab.SharedAPIServer(t, apiserver.Options{}), registry: prom.NewPedanticRegistry(), fleet: lab.Must(fleet.New(fleet.Options{})),
	}
	opts := watchermetrics.Options{Managers: []core.Manager{manager}, PerRuntime: 10}
	measured := lab.Must(watchermetrics.NewListener(s.registry, opts))
	lab.NoError(t, watchermetrics.RegisterFleet(s.registry, s.fleet, opts))
	pki := lab.NewPKI(t)
	canary := lab.NewCanary(t, s.plane, "live")
	operator := lab.StartPlane(t, pki, lab.PlaneOptions{Listener: listener.Options{Fleet: s.fleet, Hooks: measured.Hooks}}, manager)
	maps.Copy(canary.Env, map[string]string{"MANAGERS": manager, "HEARTBEAT_INTERVAL": "1s", "CANARY_INTERVAL": "1s"})
	s.agent = lab.StartAgent(t, pki.RuntimeVolume(runtime, lab.RuntimeDomain(runtime)), operator.Addr, lab.AgentOptions{Env: canary.Env})
	watched := watch.Watch{
		Name:     types.NamespacedName{Namespace: lab.Namespace, Name: "configmaps"},
		Manager:  manager,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Selector: watch.Selector{Labels: map[string]string{"watched": "true"}},
	}
	lab.Register(t, s.plane, "live", s.agent.WebhookPort, pki.CA.PEM, admission.ConfigurationOptions{Canary: canary.Lease}, watched)
	lab.AwaitReviews(t, s.plane, s.agent, watched.Selector.Labels)
	watched.Selector.Labels = map[string]string{"nowhere": "true"}
	lab.Register(t, s.plane, "nowhere", lab.FreePort(t), pki.CA.PEM, admission.ConfigurationOptions{}, watched)
	lab.Eventually(t, lab.Patience, "a write passes without an answer", func() bool {
		lab.NoError(t, s.plane.Client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			GenerateName: "open-", Namespace: lab.Namespace, Labels: watched.Selector.Labels,
		}}, client.DryRunAll))
		return bytes.Contains(lab.ScrapeAPIServer(t, s.plane), []byte("apiserver_admission_webhook_fail_open_count{"))
	})
	lab.Eventually(t, lab.Patience, "the runtime is fresh", func() bool {
		return s.fleet.Get(runtime, manager).State == fleet.Fresh
	})
	return s
}

// TestLive compares the reference with a real agent and a real operator: names, types, help texts,
// labels and their values.
func TestLive(t *testing.T) {
	s := newScene(t)
	families := append(parse(t, s.agent.Scrape()), lab.Must(s.registry.Gather())...)
	described := map[string]metric{}
	for _, m := range catalog(t) {
		described[m.name] = m
	}
	live := map[string]bool{}
	words := newVocabulary(t)
	for _, m := range metricsIn(families) {
		live[m.name] = true
		if want := described[m.name]; !reflect.DeepEqual(m, want) {
			t.Errorf("a process has %+v, the reference has %+v", m, want)
		}
	}
	for _, family := range families {
		for _, series := range family.GetMetric() {
			for _, pair := range series.GetLabel() {
				values := words.of(family.GetName(), pair.GetName())
				if live[family.GetName()] && values != nil && !slices.Contains(values, pair.GetValue()) {
					t.Errorf("%s has %s=%q, which the reference does not list", family.GetName(), pair.GetName(), pair.GetValue())
				}
			}
		}
	}
	for _, m := range ofProgram() {
		if !live[m.name] {
			t.Errorf("the agent does not have %s, which the reference lists", m.name)
		}
	}
	s.findForeign(t, families)
	healthyIsSilent(t, families)
}

// findForeign fails when a metric of others that a rule or panel names does not exist.
func (s *scene) findForeign(t *testing.T, families []*dto.MetricFamily) {
	t.Helper()
	found := describedLabels(t)
	for _, family := range slices.Concat(families, parse(t, lab.ScrapeAPIServer(t, s.plane))) {
		for _, suffix := range suffixes(strings.ToLower(family.GetType().String())) {
			if name := family.GetName() + suffix; found[name] == nil {
				found[name] = labelsOf(family) // An API server has a workqueue_depth of its own.
			}
		}
	}
	for name, labels := range foreign() {
		have, ok := found[name]
		if !ok {
			t.Errorf("no process has %s", name)
		}
		for _, label := range labels {
			if !slices.Contains(have, label) {
				t.Errorf("%s has the labels %v, want %s", name, have, label)
			}
		}
	}
	const open = "apiserver_admission_webhook_fail_open_count"
	if !regexp.MustCompile(open + `\{name="[^"]*operator.kyma-project.io"`).Match(lab.ScrapeAPIServer(t, s.plane)) {
		t.Errorf("no series of %s has a name that ends as the alert expects", open)
	}
}

// describedLabels returns the labels of all metrics of controller-runtime, also of those without a
// series.
func describedLabels(t *testing.T) map[string][]string {
	t.Helper()
	registry, ok := metrics.Registry.(prom.Collector)
	if !ok {
		t.Fatal("the registry of controller-runtime does not describe its metrics")
	}
	pattern := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`)
	found := map[string][]string{}
	for _, text := range descriptions(registry) {
		if match := pattern.FindStringSubmatch(text); match != nil {
			for _, suffix := range []string{"", "_bucket"} {
				found[match[1]+suffix] = strings.Split(match[2], ",")
			}
		}
	}
	return found
}

// healthyIsSilent gives the series of the healthy processes to promtool. No alert may fire.
func healthyIsSilent(t *testing.T, families []*dto.MetricFamily) {
	t.Helper()
	var out strings.Builder
	out.WriteString("rule_files: [rules.yaml]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n")
	for _, family := range families {
		for _, series := range family.GetMetric() {
			if family.GetType() != dto.MetricType_HISTOGRAM && strings.HasPrefix(family.GetName(), "runtime_watcher_") {
				fmt.Fprintf(&out, "      - series: '%s%s'\n        values: '%gx200'\n", family.GetName(), selector(series),
					series.GetCounter().GetValue()+series.GetGauge().GetValue())
			}
		}
	}
	out.WriteString("    promql_expr_test:\n      - expr: 'ALERTS{alertstate=\"firing\"}'\n        eval_time: 2h\n        exp_samples: []\n")
	dir := t.TempDir()
	for file, text := range map[string]string{"rules.yaml": read(t, folder+"/rules.yaml"), "healthy.test.yaml": out.String()} {
		lab.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
	testRules(t, dir, "healthy.test.yaml")
}

func selector(series *dto.Metric) string {
	pairs := []string{}
	for _, pair := range series.GetLabel() {
		pairs = append(pairs, fmt.Sprintf("%s=%q", pair.GetName(), pair.GetValue()))
	}
	return "{" + strings.Join(pairs, ",") + "}"
}
