package prometheus_test

import (
	"strings"
	"testing"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

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
	reg, read := installationRegistry(t), installations
	const want = `
# HELP runtime_watcher_installation_ca_phase 1 for the phase of the CA's rotation.
# TYPE runtime_watcher_installation_ca_phase gauge
runtime_watcher_installation_ca_phase{phase="Confirming"} 1
# HELP runtime_watcher_installation_ca_waiting_runtimes Runtimes that delay the rotation of the CA.
# TYPE runtime_watcher_installation_ca_waiting_runtimes gauge
runtime_watcher_installation_ca_waiting_runtimes 2
# HELP runtime_watcher_installation_certificates_overdue_runtimes Runtimes with a certificate that was not issued or renewed in time.
# TYPE runtime_watcher_installation_certificates_overdue_runtimes gauge
runtime_watcher_installation_certificates_overdue_runtimes 1
# HELP runtime_watcher_installation_never_heard_runtimes Runtimes with an agent that is ready for 5 minutes, and that never sent anything.
# TYPE runtime_watcher_installation_never_heard_runtimes gauge
runtime_watcher_installation_never_heard_runtimes{manager="kyma"} 2
runtime_watcher_installation_never_heard_runtimes{manager="other"} 0
# HELP runtime_watcher_installation_repairs_total Reconciles that applied all objects of an agent, because the fleet found that it does not watch.
# TYPE runtime_watcher_installation_repairs_total counter
runtime_watcher_installation_repairs_total 4
# HELP runtime_watcher_installation_runtime_problem 1 for a runtime with that problem.
# TYPE runtime_watcher_installation_runtime_problem gauge
runtime_watcher_installation_runtime_problem{problem="ca_waiting",runtime="b"} 1
runtime_watcher_installation_runtime_problem{problem="certificate_overdue",runtime="c"} 1
runtime_watcher_installation_runtime_problem{problem="never_heard",runtime="a"} 1
# HELP runtime_watcher_installation_runtimes Runtimes in each state of the agent's installation, by reason.
# TYPE runtime_watcher_installation_runtimes gauge
runtime_watcher_installation_runtimes{reason="",state="Ready"} 3
runtime_watcher_installation_runtimes{reason="Unreachable",state="Failed"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"no registerer": prometheus.RegisterInstallations(nil, read, prometheus.Options{}),
		"no function":   prometheus.RegisterInstallations(prom.NewRegistry(), nil, prometheus.Options{}),
		"below zero":    prometheus.RegisterInstallations(prom.NewRegistry(), read, prometheus.Options{PerRuntime: -1}),
		"twice":         prometheus.RegisterInstallations(reg, read, prometheus.Options{}),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
