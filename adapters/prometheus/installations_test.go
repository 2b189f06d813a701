package prometheus_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

func installations() fleet.Installations {
	return fleet.Installations{
		Runtimes: map[fleet.InstallationState]int{
			{State: "Ready"}: 3, {State: "Failed", Reason: "Unreachable"}: 1,
		},
		NeverHeard: map[core.Manager][]core.RuntimeID{"kyma": {"a", "b"}, "other": nil},
		Phase:      "Confirming", Waiting: []core.RuntimeID{"b", "c"}, Overdue: []core.RuntimeID{"c"}, Repairs: 4,
	}
}

func installationRegistry(t *testing.T) *prom.Registry {
	t.Helper()
	reg := prom.NewPedanticRegistry()
	if err := prometheus.RegisterInstallations(reg, installations,
		prometheus.Options{PerRuntime: 1}); err != nil {
		t.Fatal(err)
	}
	return reg
}

func TestInstallations(t *testing.T) {
	t.Parallel()
	text := scrape(t, installationRegistry(t))
	want := []string{
		`ca_phase{phase="Confirming"} 1`,
		`ca_waiting_runtimes 2`,
		`certificates_overdue_runtimes 1`,
		`never_heard_runtimes{manager="kyma"} 2`,
		`repairs_total 4`,
		`runtime_problem{problem="ca_waiting",runtime="b"} 1`,
		`runtime_problem{problem="certificate_overdue",runtime="c"} 1`,
		`runtime_problem{problem="never_heard",runtime="a"} 1`,
		`runtimes{reason="",state="Ready"} 3`,
		`runtimes{reason="Unreachable",state="Failed"} 1`,
	}
	if diff := cmp.Diff(want, values(text)); diff != "" {
		t.Errorf("exposed, without zeros (-want +got):\n%s", diff)
	}
	wantLines(t, text, `never_heard_runtimes{manager="other"} 0`)
}
