package prometheus

import (
	"fmt"
	"maps"
	"slices"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// The problems of a runtime.
const (
	problemNeverHeard = "never_heard"
	problemWaiting    = "ca_waiting"
	problemOverdue    = "certificate_overdue"
)

// installationsCollector reads the installations at each scrape.
type installationsCollector struct {
	descs

	read func() fleet.Installations
	opts Options

	runtimes, neverHeard, phase, waiting, overdue, problem, repairs *prom.Desc
}

// RegisterInstallations registers the metrics of the agents that a control plane installs with reg.
// Each scrape calls read, such as the method Installations of a runtimes.Overview. It fails when
// reg or read is nil or an option is wrong. It fails with a [prom.AlreadyRegisteredError] when reg
// has such metrics.
func RegisterInstallations(reg prom.Registerer, read func() fleet.Installations, opts Options) error {
	opts = opts.withDefaults()
	if err := check(reg, opts); err != nil {
		return err
	}
	if read == nil {
		return fmt.Errorf("%w: the function that reads is nil, want one", errOptions)
	}
	c := &installationsCollector{descs: descs{word: "installation"}, read: read, opts: opts}
	c.describe()
	return register(reg, c)
}

func (c *installationsCollector) describe() {
	c.runtimes = c.desc("runtimes", "Runtimes in each state of the agent's installation, by reason.",
		labelState, labelReason)
	c.neverHeard = c.desc("never_heard_runtimes",
		"Runtimes with an agent that is ready for 5 minutes, and that never sent anything.", labelManager)
	c.phase = c.desc("ca_phase", "1 for the phase of the CA's rotation.", labelPhase)
	c.waiting = c.desc("ca_waiting_runtimes",
		"Runtimes that delay the rotation of the CA.")
	c.overdue = c.desc("certificates_overdue_runtimes",
		"Runtimes with a certificate that was not issued or renewed in time.")
	c.repairs = c.desc("repairs_total",
		"Reconciles that applied all objects of an agent, because the fleet found that it does not watch.")
	c.problem = c.desc("runtime_problem", "1 for a runtime with that problem.", labelRuntime, labelProblem)
}

func (c *installationsCollector) Collect(metrics chan<- prom.Metric) {
	all := c.read()

	for state, number := range all.Runtimes {
		metrics <- gauge(c.runtimes, float64(number), state.State, state.Reason)
	}

	silent := make(map[core.RuntimeID]struct{})
	for i, manager := range slices.Sorted(maps.Keys(all.NeverHeard)) {
		if i < c.opts.MaxManagers {
			metrics <- gauge(c.neverHeard, float64(len(all.NeverHeard[manager])), string(manager))
		}
		for _, id := range all.NeverHeard[manager] {
			silent[id] = struct{}{}
		}
	}

	if all.Phase != "" {
		metrics <- gauge(c.phase, 1, all.Phase)
	}

	metrics <- gauge(c.waiting, float64(len(all.Waiting)))
	metrics <- gauge(c.overdue, float64(len(all.Overdue)))
	metrics <- counter(c.repairs, all.Repairs)

	c.collectProblem(metrics, problemNeverHeard, slices.Sorted(maps.Keys(silent)))
	c.collectProblem(metrics, problemWaiting, all.Waiting)
	c.collectProblem(metrics, problemOverdue, all.Overdue)
}

func (c *installationsCollector) collectProblem(metrics chan<- prom.Metric, problem string, ids []core.RuntimeID) {
	for _, id := range ids[:min(len(ids), c.opts.PerRuntime)] {
		metrics <- gauge(c.problem, 1, string(id), problem)
	}
}
