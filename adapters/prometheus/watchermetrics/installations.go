package watchermetrics

import (
	"fmt"
	"maps"
	"slices"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/installations"
)

const (
	problemNeverHeard = "never_heard"
	problemWaiting    = "ca_waiting"
	problemOverdue    = "certificate_overdue"
)

// RegisterInstallations registers with reg the metrics of the agents that a control plane installs.
// Each scrape calls read, such as the method Installations of a runtimes.Overview.
// RegisterInstallations fails if reg or read is nil or an option is invalid. If reg already has
// such metrics, it fails with a [prom.AlreadyRegisteredError].
func RegisterInstallations(reg prom.Registerer, read func() installations.All, opts Options) error {
	if read == nil {
		return fmt.Errorf("%w: the function read is nil", errOptions)
	}
	return register(reg, "installation", opts, func(f *factory) { sampleInstallations(f, read) })
}

func sampleInstallations(f *factory, read func() installations.All) {
	runtimes := f.sampledGauge("runtimes", "Runtimes in each state of the agent's installation, by reason.",
		labelState, labelReason)
	neverHeard := f.sampledGauge("never_heard_runtimes",
		"Runtimes with an agent that has been ready for 5 minutes and has never sent anything.", labelManager)
	phase := f.sampledGauge("ca_phase", "1 for the current phase of the rotation of the CA.", labelPhase)
	waiting := f.sampledGauge("ca_waiting_runtimes", "Runtimes that delay the rotation of the CA.")
	overdue := f.sampledGauge("certificates_overdue_runtimes",
		"Runtimes with a certificate that was not issued or renewed in time.")
	repairs := f.sampledCounter("repairs_total",
		"Reconciles that applied all objects of an agent, because the fleet found that its runtime was not watched.")
	problem := f.sampledGauge("runtime_problem", "1 for a runtime with this problem.", labelRuntime, labelProblem)
	f.scrape = func(metrics chan<- prom.Metric) {
		all := read()
		for state, number := range all.Runtimes {
			metrics <- runtimes(float64(number), string(state.State), string(state.Reason))
		}

		silent := make(map[core.RuntimeID]struct{})
		for i, manager := range slices.Sorted(maps.Keys(all.NeverHeard)) {
			if i < f.opts.MaxManagers {
				metrics <- neverHeard(float64(len(all.NeverHeard[manager])), string(manager))
			}

			for _, id := range all.NeverHeard[manager] {
				silent[id] = struct{}{}
			}
		}

		if all.Phase != "" {
			metrics <- phase(1, string(all.Phase))
		}

		metrics <- waiting(float64(len(all.Waiting)))
		metrics <- overdue(float64(len(all.Overdue)))
		metrics <- repairs(float64(all.Repairs))

		for name, ids := range map[string][]core.RuntimeID{
			problemNeverHeard: slices.Sorted(maps.Keys(silent)),
			problemWaiting:    all.Waiting,
			problemOverdue:    all.Overdue,
		} {
			for _, id := range ids[:min(len(ids), f.opts.PerRuntime)] {
				metrics <- problem(1, string(id), name)
			}
		}
	}
}
