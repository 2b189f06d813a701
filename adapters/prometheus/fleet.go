package prometheus

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// fleetCollector reads a fleet at each scrape.
type fleetCollector struct {
	descs

	fleet *fleet.Fleet
	opts  Options

	runtimes, pending, oldest, expiry, resyncs, resyncsToCome, untracked *prom.Desc
	state, heard, oldestOf                                               *prom.Desc
}

// RegisterFleet registers the metrics of a fleet with reg. Each scrape reads the fleet, which takes
// about 5 ms for 10,000 runtimes. It fails when reg or watched is nil or an option is wrong. It
// fails with a [prom.AlreadyRegisteredError] when reg has such metrics.
func RegisterFleet(reg prom.Registerer, watched *fleet.Fleet, opts Options) error {
	opts = opts.withDefaults()
	if err := check(reg, opts); err != nil {
		return err
	}
	if watched == nil {
		return fmt.Errorf("%w: the fleet is nil, want one", errOptions)
	}
	c := &fleetCollector{descs: descs{word: "fleet"}, fleet: watched, opts: opts}
	c.describe()
	return register(reg, c)
}

func (c *fleetCollector) describe() {
	c.runtimes = c.desc("runtimes", "Runtimes known for a manager, by state and reason.",
		labelManager, labelState, labelReason)
	c.pending = c.desc("events_pending", "Events that wait in the runtimes, as last reported.", labelManager)
	c.oldest = c.desc("oldest_event_pending_seconds",
		"Age of the oldest event that waits in a runtime, as last reported.", labelManager)
	c.expiry = c.desc("first_certificate_expiry_timestamp_seconds",
		"First expiry of a verified client certificate, also of a runtime that is silent since then, in Unix time.", labelManager)
	c.resyncs = c.desc("resyncs_total", "Resyncs that the control plane asked for and delivered, by cause.",
		labelManager, labelCause)
	c.resyncsToCome = c.desc("resyncs_pending",
		"Resyncs that the control plane asked for and has not delivered yet.", labelManager)
	c.untracked = c.desc("untracked_total",
		"Requests of runtimes that are not tracked, because the limit is reached.", labelManager)
	c.state = c.desc("runtime_state", "1 for the state of a runtime.",
		labelRuntime, labelManager, labelState, labelReason)
	c.heard = c.desc("runtime_heard_timestamp_seconds",
		"Time of the last request of a runtime, in Unix time.", labelRuntime, labelManager)
	c.oldestOf = c.desc("runtime_oldest_event_pending_seconds",
		"Age of the oldest event that waits in a runtime, as last reported.", labelRuntime, labelManager)
}

func (c *fleetCollector) Collect(metrics chan<- prom.Metric) {
	summaries := c.fleet.Summaries()
	for _, manager := range c.named(summaries) {
		c.collectManager(metrics, string(manager), cmp.Or(summaries[manager], &fleet.Summary{}))
	}
	if c.opts.PerRuntime > 0 {
		c.collectRuntimes(metrics)
	}
}

// named returns the managers with series of their own, those of the options first.
func (c *fleetCollector) named(summaries map[core.Manager]*fleet.Summary) []core.Manager {
	named := slices.Clone(c.opts.Managers)
	for _, manager := range slices.Sorted(maps.Keys(summaries)) {
		if len(named) < c.opts.MaxManagers && validManager(manager) && !slices.Contains(named, manager) {
			named = append(named, manager)
		}
	}
	return named
}

// collectManager exposes every state, reason and cause, also at zero, so that alerts can compare.
func (c *fleetCollector) collectManager(metrics chan<- prom.Metric, manager string, s *fleet.Summary) {
	for _, condition := range fleet.Conditions() {
		metrics <- gauge(c.runtimes, float64(s.Runtimes[condition]), manager, string(condition.State), condition.Reason)
	}
	for _, cause := range fleet.Causes() {
		metrics <- counter(c.resyncs, s.Resyncs[cause], manager, cause)
	}
	metrics <- gauge(c.pending, float64(s.Pending), manager)
	metrics <- gauge(c.oldest, s.OldestPending.Seconds(), manager)
	metrics <- gauge(c.resyncsToCome, float64(s.ResyncsToCome), manager)
	metrics <- counter(c.untracked, s.Untracked, manager)
	if !s.FirstExpiry.IsZero() {
		metrics <- gauge(c.expiry, float64(s.FirstExpiry.Unix()), manager)
	}
}

func (c *fleetCollector) collectRuntimes(metrics chan<- prom.Metric) {
	var all []fleet.Status
	c.fleet.Range(func(s fleet.Status) bool {
		all = append(all, s)
		return true
	})
	freshLast := map[fleet.State]int{fleet.Fresh: 1}
	slices.SortFunc(all, func(a, b fleet.Status) int {
		return cmp.Or(cmp.Compare(freshLast[a.State], freshLast[b.State]),
			cmp.Compare(a.Runtime, b.Runtime), cmp.Compare(a.Manager, b.Manager))
	})
	for _, s := range all[:min(len(all), c.opts.PerRuntime)] {
		labels := []string{string(s.Runtime), string(s.Manager)}
		metrics <- gauge(c.state, 1, append(labels, string(s.State), s.Reason)...)
		metrics <- gauge(c.heard, float64(s.LastSeen.UnixMilli())/1e3, labels...)
		metrics <- gauge(c.oldestOf, oldest(&s), labels...)
	}
}

func oldest(s *fleet.Status) (seconds float64) {
	for _, p := range s.Replicas {
		if p.Heartbeat != nil {
			seconds = max(seconds, p.Heartbeat.OldestPending.Seconds())
		}
	}
	return seconds
}
