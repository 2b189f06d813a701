package watchermetrics

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// RegisterFleet registers the metrics of a fleet with reg. Each scrape reads the fleet, which takes
// about 5 ms for 10,000 runtimes. A manager that the fleet serves has series once this replica
// leads, even if Managers does not contain it. RegisterFleet fails if reg or watched is nil or an
// option is invalid. If reg already has such metrics, it fails with a
// [prom.AlreadyRegisteredError].
func RegisterFleet(reg prom.Registerer, watched *fleet.Fleet, opts Options) error {
	if watched == nil {
		return fmt.Errorf("%w: the fleet is nil", errOptions)
	}
	return register(reg, "fleet", opts, func(f *factory) {
		ofManager := sampleManagers(f)
		ofRuntime := sampleRuntimes(f)
		f.scrape = func(metrics chan<- prom.Metric) {
			summaries := watched.Summaries()
			for _, manager := range f.opts.namedManagers(summaries) {
				ofManager(metrics, string(manager), cmp.Or(summaries[manager], &fleet.Summary{}))
			}

			if f.opts.PerRuntime > 0 {
				for _, s := range worst(watched, f.opts.PerRuntime) {
					ofRuntime(metrics, &s)
				}
			}
		}
	})
}

func (o Options) namedManagers(summaries map[core.Manager]*fleet.Summary) []core.Manager {
	named := slices.Clone(o.Managers)
	for _, manager := range slices.Sorted(maps.Keys(summaries)) {
		if len(named) < o.MaxManagers && validManager(manager) && !slices.Contains(named, manager) {
			named = append(named, manager)
		}
	}
	return named
}

// sampleManagers exposes every state, reason and cause, also at zero, so that alerts can compare.
func sampleManagers(f *factory) func(metrics chan<- prom.Metric, manager string, s *fleet.Summary) {
	runtimes := f.sampledGauge("runtimes", "Runtimes that are known for a manager, by state and reason.",
		labelManager, labelState, labelReason)
	resyncs := f.sampledCounter("resyncs_total", "Resyncs that the control plane requested and delivered, by cause.",
		labelManager, labelCause)
	pending := f.sampledGauge("events_pending", "Events that wait in the runtimes, as last reported.", labelManager)
	oldest := f.sampledGauge("oldest_event_pending_seconds",
		"Age of the oldest event that waits in any runtime, as last reported.", labelManager)
	resyncsToCome := f.sampledGauge("resyncs_pending",
		"Resyncs that the control plane requested and has not delivered yet.", labelManager)
	untracked := f.sampledCounter("untracked_total",
		"Requests from runtimes that are not tracked, because the limit is reached.", labelManager)
	expiry := f.sampledGauge("first_certificate_expiry_timestamp_seconds",
		"Earliest expiry of the verified client certificates, in Unix time. "+
			"A silent runtime counts only if it became silent when its certificate expired.", labelManager)
	versions := f.sampledGauge("runtimes_by_version",
		"Runtimes with an agent of each version, without silent runtimes. A runtime with two versions counts for both.",
		labelManager, labelVersion)
	skew := f.sampledGauge("largest_clock_skew_seconds",
		"Largest difference between the clocks of an agent and the operator, in either direction.", labelManager)

	return func(metrics chan<- prom.Metric, manager string, s *fleet.Summary) {
		for _, condition := range fleet.Conditions() {
			metrics <- runtimes(float64(s.Runtimes[condition]), manager, string(condition.State), string(condition.Reason))
		}

		for _, cause := range fleet.Causes() {
			metrics <- resyncs(float64(s.Resyncs[cause]), manager, string(cause))
		}

		metrics <- pending(float64(s.Pending), manager)
		metrics <- oldest(s.OldestPending.Seconds(), manager)
		metrics <- resyncsToCome(float64(s.ResyncsToCome), manager)
		metrics <- untracked(float64(s.Untracked), manager)

		for version, runtimes := range s.Versions {
			metrics <- versions(float64(runtimes), manager, version)
		}

		metrics <- skew(s.ClockSkew.Seconds(), manager)
		if !s.FirstExpiry.IsZero() {
			metrics <- expiry(float64(s.FirstExpiry.Unix()), manager)
		}
	}
}

func sampleRuntimes(f *factory) func(metrics chan<- prom.Metric, s *fleet.Status) {
	state := f.sampledGauge("runtime_state", "1 for the current state of a runtime.",
		labelRuntime, labelManager, labelState, labelReason)
	heard := f.sampledGauge("runtime_heard_timestamp_seconds",
		"Time of the last verified request from a runtime, in Unix time.", labelRuntime, labelManager)
	oldest := f.sampledGauge("runtime_oldest_event_pending_seconds",
		"Age of the oldest event that waits in a runtime, as last reported.", labelRuntime, labelManager)

	return func(metrics chan<- prom.Metric, s *fleet.Status) {
		var seconds float64
		for _, p := range s.Replicas {
			if p.Heartbeat != nil {
				seconds = max(seconds, p.Heartbeat.OldestPending.Seconds())
			}
		}

		labels := []string{string(s.Runtime), string(s.Manager)}
		metrics <- state(1, append(labels, string(s.State), string(s.Reason))...)
		metrics <- heard(float64(s.LastSeen.UnixMilli())/1e3, labels...)
		metrics <- oldest(seconds, labels...)
	}
}

func worst(watched *fleet.Fleet, most int) (all []fleet.Status) {
	watched.Range(func(s fleet.Status) bool {
		all = append(all, s)
		return true
	})
	freshLast := map[fleet.State]int{fleet.Fresh: 1}
	slices.SortFunc(all, func(a, b fleet.Status) int {
		return cmp.Or(cmp.Compare(freshLast[a.State], freshLast[b.State]),
			cmp.Compare(a.Runtime, b.Runtime), cmp.Compare(a.Manager, b.Manager))
	})

	return all[:min(len(all), most)]
}
