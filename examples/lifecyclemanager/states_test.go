package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	prom "github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/cause"
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

// reader is a runtime with a Kyma in version 2.
type reader struct{ client.Client }

// Get implements [client.Reader].
func (reader) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	object.SetUID("uid")
	object.SetResourceVersion("2")
	return nil
}

// GroupVersionKindFor implements [client.Client]. Only a read of the kind of an event counts for it.
func (reader) GroupVersionKindFor(runtime.Object) (schema.GroupVersionKind, error) {
	return v1beta2.GroupVersion().WithKind("Kyma"), nil
}

// TestCauses wants an event to cause one reconcile, also with a resync after it. Its resend causes
// none, and the next reconcile, after an error, is not counted for the resend.
func TestCauses(t *testing.T) {
	watched := rig.Must(fleet.New(fleet.Options{}))
	registry := prom.NewRegistry()
	reconciles, err := cause.NewMetric(registry)
	if err != nil {
		t.Fatal(err)
	}
	request := ctrl.Request{}
	made := cause.NewSource(kymaManager, func(context.Context, core.Delivery) ([]ctrl.Request, error) {
		return []ctrl.Request{request}, nil
	}, watched, reconciles)
	queue := priorityqueue.New[ctrl.Request]("causes")
	defer queue.ShutDown()
	counted := made.Count(reconcile.Func(func(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
		there := made.Client(r, "runtime-1", reader{})
		return ctrl.Result{}, errors.Join(there.Get(ctx, client.ObjectKey{}, &v1beta2.Kyma{}), errors.New("again"))
	}))
	err = made.Start(t.Context(), queue)
	changed := core.WatchEvent{UID: "uid", Base: 1, WatchedGVK: v1beta2.GroupVersion().WithKind("Kyma")}
	for _, events := range [][]core.WatchEvent{{changed, {Resync: true}}, {changed}} {
		for _, e := range events {
			err = errors.Join(err, made.Handle(t.Context(), core.Delivery{Runtime: "runtime-1", Event: e}))
		}
		_, _ = counted.Reconcile(t.Context(), request)
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]float64{
		"lifecycle_manager_reconciles_total event lifecycle-manager": 1,
		"lifecycle_manager_reconciles_total retry lifecycle-manager": 1,
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
