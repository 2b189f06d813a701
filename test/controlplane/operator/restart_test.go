package operator_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// watching is an operator with a page and metrics of its fleet.
type watching struct {
	*operator

	page    http.Handler
	metrics *prom.Registry
}

func (l *lab) startWatching(t *testing.T) *watching {
	t.Helper()
	watched := must(fleet.New(fleet.Options{}))
	w := &watching{
		operator: l.setUpWatching(t, watched), metrics: prom.NewRegistry(),
		page: statuspage.Authenticated(statuspage.FleetHandler(watched)),
	}
	opts := prometheus.Options{Managers: []core.Manager{"my-operator"}}
	if err := prometheus.RegisterFleet(w.metrics, watched, opts); err != nil {
		t.Fatal(err)
	}
	w.start(t)
	return w
}

func (l *lab) setUpWatching(t *testing.T, watched *fleet.Fleet) *operator {
	t.Helper()
	o := &operator{
		mgr: must(manager.New(l.Config, managerOptions())), addr: rig.Address(rig.FreePort(t)),
		reconciled: make(chan string),
	}
	runtimes := must(controllerruntime.NewRuntimes(t.Context(), o.mgr.GetCache(), kymaKind(), controllerruntime.ByName,
		controllerruntime.RuntimesOptions{Fleet: watched, Managers: []core.Manager{"my-operator"}}))
	source := must(controllerruntime.SetUpListener(o.mgr, o.addr, "my-operator",
		controllerruntime.MutualTLS(l.ServerMaterial()), listener.SANPinning(runtimes),
		controllerruntime.EnqueueByRuntime(runtimes),
		controllerruntime.ComponentOptions{Listener: listener.Options{Fleet: watched}}))
	controller := builder.ControllerManagedBy(o.mgr).Named("restart").WatchesRawSource(source)
	if err := controller.Complete(reconcile.Func(o.reconcile)); err != nil {
		t.Fatal(err)
	}
	return o
}

// shows waits until the page has the runtime in a state, and the metrics count it there.
func (w *watching) shows(t *testing.T, state string) {
	t.Helper()
	var page struct {
		Runtimes []fleet.Status `json:"runtimes"`
	}
	eventually(t, "page and metrics show the runtime as "+state, func() bool {
		answer := httptest.NewRecorder()
		w.page.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/fleet?brief=true&runtime=skr-1", http.NoBody))
		if err := json.Unmarshal(answer.Body.Bytes(), &page); err != nil {
			t.Fatalf("%v: %s", err, answer.Body)
		}
		return len(page.Runtimes) == 1 && fmt.Sprint(page.Runtimes[0].State) == state && w.counts(state) == 1
	})
}

// counts returns the number of runtimes in a state, by the metrics.
func (w *watching) counts(state string) (sum float64) {
	for _, family := range must(w.metrics.Gather()) {
		for _, series := range family.GetMetric() {
			for _, label := range series.GetLabel() {
				if family.GetName() == "runtime_watcher_fleet_runtimes" && label.GetName() == "state" && label.GetValue() == state {
					sum += series.GetGauge().GetValue()
				}
			}
		}
	}
	return sum
}

// testRestart: a restart of the operator made a dead runtime vanish from page and metrics.
func (l *lab) testRestart(t *testing.T) {
	l.kyma(t, "skr-1", "skr-1.example.com")
	first := l.startWatching(t)
	alive := core.Batch{Source: "skr-1", Epoch: "e", Heartbeat: &core.Heartbeat{
		ID: "1", Time: time.Now(), Number: 1, Interval: time.Hour, Instance: "agent-0", Canary: core.CanaryAlive,
	}}
	skr := l.runtime(t, "skr-1", "skr-1.example.com")
	eventually(t, "a heartbeat is accepted", func() bool {
		return skr.send(t, first.addr, contract.V3, alive) == http.StatusAccepted
	})
	first.shows(t, "fresh")
	first.stop()
	second := l.startWatching(t)
	second.shows(t, "unknown")
	second.shows(t, "stale")
}
