package main

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	prom "github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/cause"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// stored is a cache with three Kymas and one ModuleTemplate.
type stored struct{ client.Reader }

// List implements [client.Reader].
func (stored) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch list := list.(type) {
	case *v1beta2.KymaList:
		list.Items = make([]v1beta2.Kyma, 3)
		for i := range list.Items {
			list.Items[i].Name = string(rune('a' + i))
			list.Items[i].Status = v1beta2.KymaStatus{State: v1beta2.Error, Modules: []v1beta2.ModuleStatus{
				{Name: "keda", State: v1beta2.Ready}, {Name: v1beta2.ModuleName("made-up-" + string(rune('a'+i))), State: v1beta2.Error},
			}}
		}
		list.Items[0].Status.State = v1beta2.Ready
	case *v1beta2.ModuleTemplateList:
		list.Items = []v1beta2.ModuleTemplate{{Spec: v1beta2.ModuleTemplateSpec{Module: "keda", Version: "1"}}}
	}
	return nil
}

func TestStates(t *testing.T) {
	registry := prom.NewRegistry()
	registry.MustRegister(states{stored{}})
	if diff := cmp.Diff(map[string]float64{
		"lifecycle_manager_kyma_state Ready": 1, "lifecycle_manager_kyma_state Error": 2,
		"lifecycle_manager_kyma_state Processing": 0, "lifecycle_manager_kyma_state Deleting": 0,
		"lifecycle_manager_module_state keda Ready": 3, "lifecycle_manager_module_state unknown Error": 3,
	}, values(t, registry)); diff != "" {
		t.Error(diff)
	}
}

// values returns those of gauges and counters, by name and labels.
func values(t *testing.T, registry *prom.Registry) map[string]float64 {
	t.Helper()
	families := rig.Must(registry.Gather())
	have := make(map[string]float64)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := []string{family.GetName()}
			for _, label := range metric.GetLabel() {
				name = append(name, label.GetValue())
			}
			have[strings.Join(name, " ")] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}
	return have
}

// TestReconciles counts reconciles by controller and cause.
func TestReconciles(t *testing.T) {
	registry := prom.NewRegistry()
	started := rig.Must(newReconciles(registry))
	started(kymaManager)(cause.Event)
	started(moduleManager)(cause.Retry)
	if diff := cmp.Diff(map[string]float64{
		"lifecycle_manager_reconciles_total event lifecycle-manager": 1,
		"lifecycle_manager_reconciles_total retry module-manager":    1,
	}, values(t, registry)); diff != "" {
		t.Error(diff)
	}
}

// TestAlerts runs the cases of the alerts, and wants each metric of the rules to be known.
func TestAlerts(t *testing.T) {
	rules := rig.Must(os.ReadFile("config/monitoring/rules.yaml"))
	used := regexp.MustCompile(`lifecycle_manager_\w+`).FindAllString(string(rules), -1)
	known := kymaState.String() + moduleState.String()
	for _, name := range used {
		if !strings.Contains(known, `"`+name+`"`) {
			t.Errorf("the operator has no metric %s", name)
		}
	}
	path, err := exec.LookPath("promtool")
	if err != nil {
		rig.Missing(t, "needs promtool (Debian: prometheus): %v", err)
	}
	promtool := exec.CommandContext(t.Context(), path, "test", "rules", "rules.test.yaml")
	promtool.Dir = "config/monitoring"
	if out, err := promtool.CombinedOutput(); err != nil || len(used) == 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// delays is a queue that keeps the delay of each request.
type delays struct {
	queue

	added map[string]time.Duration
}

// AddAfter implements the queue.
func (d delays) AddAfter(request ctrl.Request, delay time.Duration) { d.added[request.Name] = delay }

func TestCatalogSpread(t *testing.T) {
	for _, spread := range []time.Duration{0, time.Hour} {
		requests := delays{added: make(map[string]time.Duration)}
		template := &v1beta2.ModuleTemplate{}
		allKymas(stored{}, spread).Update(t.Context(), event.UpdateEvent{ObjectOld: template, ObjectNew: template}, requests)
		sum := requests.added["a"] + requests.added["b"] + requests.added["c"]
		if len(requests.added) != 3 || (sum > 0) != (spread > 0) || sum > 3*spread {
			t.Errorf("delays %v, want three within %s", requests.added, spread)
		}
	}
}
