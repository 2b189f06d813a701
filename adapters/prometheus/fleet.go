package prometheus

import (
	"cmp"
	"fmt"
	"slices"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// FleetOptions are what may be chosen about the metrics of a fleet. The zero value is usable.
type FleetOptions struct {
	Options

	// PerRuntime is how many pairs of runtime and manager have series of their own. Each costs three series, which live until the runtime is
	// forgotten, and a scrape then sorts all that are known: 10,000 runtimes are 30,000 series. Beyond the bound, those that are not fresh
	// come first, then the order is that of their names. Default: 0, none; the fleet's handler shows single runtimes, too.
	PerRuntime int
}

// fleetCollector reads a fleet at each scrape, so that what is exposed is true at that moment and nothing has to be kept in step.
type fleetCollector struct {
	fleet      *fleet.Fleet
	descs      fleetDescs
	managers   map[core.Manager]struct{}
	max        int
	perRuntime int
}

type fleetDescs struct {
	runtimes, pending, oldest, expiry, resyncs, resyncsToCome, untracked *prom.Desc
	state, heard, oldestOf                                               *prom.Desc
}

// RegisterFleet registers the metrics of a fleet with reg. They are read from it at each scrape, which takes it about 5 ms for 10,000
// runtimes. It fails with [ErrInvalidOptions] when reg or watched is nil or opts are wrong, and with a
// [prom.AlreadyRegisteredError] when reg has such metrics.
func RegisterFleet(reg prom.Registerer, watched *fleet.Fleet, opts FleetOptions) error {
	opts.Options = opts.withDefaults()
	if err := check(reg, opts.Options); err != nil {
		return err
	}

	switch {
	case watched == nil:
		return fmt.Errorf("%w: the fleet is nil, want that of the listener's options", ErrInvalidOptions)
	case opts.PerRuntime < 0:
		return fmt.Errorf("%w: PerRuntime is %d, want at least 0", ErrInvalidOptions, opts.PerRuntime)
	}

	return collectors{newFleetCollector("fleet", watched, opts)}.register(reg)
}

func newFleetCollector(f factory, watched *fleet.Fleet, opts FleetOptions) *fleetCollector {
	c := &fleetCollector{
		fleet:      watched,
		managers:   make(map[core.Manager]struct{}),
		max:        opts.MaxManagers,
		perRuntime: opts.PerRuntime,
		descs: fleetDescs{
			runtimes: f.desc("runtimes", "Runtimes known for a manager, by state and reason.", labelManager, labelState, labelReason),
			pending:  f.desc("events_pending", "Events that wait in the runtimes, as these told last.", labelManager),
			oldest: f.desc("oldest_event_pending_seconds",
				"Age of the oldest event that waits in any runtime, when that told it.", labelManager),
			expiry: f.desc("first_certificate_expiry_timestamp_seconds",
				"When the first client certificate of a runtime that is heard expires, in Unix time.", labelManager),
			resyncs:       f.desc("resyncs_total", "Resyncs that the control plane asked for itself and delivered, by cause.", labelManager, labelCause),
			resyncsToCome: f.desc("resyncs_pending", "Resyncs that the control plane asked for itself and has not delivered yet.", labelManager),
			untracked:     f.desc("untracked_total", "Requests of runtimes that are not tracked, as the bound is reached.", labelManager),
			state:         f.desc("runtime_state", "1 for the state that a runtime is in.", labelRuntime, labelManager, labelState, labelReason),
			heard:         f.desc("runtime_heard_timestamp_seconds", "When a runtime was last heard, in Unix time.", labelRuntime, labelManager),
			oldestOf: f.desc("runtime_oldest_event_pending_seconds",
				"Age of the oldest event that waits in a runtime, when that told it.", labelRuntime, labelManager),
		},
	}

	for _, manager := range opts.Managers {
		c.managers[manager] = struct{}{}
	}

	return c
}

// Describe implements [prom.Collector].
func (c *fleetCollector) Describe(descs chan<- *prom.Desc) {
	d := c.descs
	for _, desc := range []*prom.Desc{d.runtimes, d.pending, d.oldest, d.expiry, d.resyncs, d.resyncsToCome, d.untracked} {
		descs <- desc
	}

	for _, desc := range []*prom.Desc{d.state, d.heard, d.oldestOf} {
		descs <- desc
	}
}

// Collect implements [prom.Collector].
func (c *fleetCollector) Collect(metrics chan<- prom.Metric) {
	summaries := c.fleet.Summaries()
	for manager := range c.managers {
		if summaries[manager] == nil {
			summaries[manager] = &fleet.Summary{}
		}
	}

	// A fleet is fed for the managers of its listeners, which are few. The bound is for one that is fed otherwise.
	for i, manager := range c.inOrder(summaries) {
		if i == c.max {
			break
		}

		c.collectManager(metrics, string(manager), summaries[manager])
	}

	if c.perRuntime > 0 {
		c.collectRuntimes(metrics)
	}
}

// inOrder returns the managers, those known from the configuration first.
func (c *fleetCollector) inOrder(summaries map[core.Manager]*fleet.Summary) []core.Manager {
	managers := make([]core.Manager, 0, len(summaries))
	for manager := range summaries {
		if validManager(manager) {
			managers = append(managers, manager)
		}
	}

	slices.SortFunc(managers, func(a, b core.Manager) int { return cmp.Or(c.rank(a)-c.rank(b), cmp.Compare(a, b)) })

	return managers
}

func (c *fleetCollector) rank(manager core.Manager) int {
	if _, configured := c.managers[manager]; configured {
		return 0
	}

	return 1
}

// collectManager exposes every state, reason and cause, at zero if need be: an alert has to have something to compare with.
func (c *fleetCollector) collectManager(metrics chan<- prom.Metric, manager string, s *fleet.Summary) {
	for _, condition := range fleet.Conditions() {
		metrics <- gauge(c.descs.runtimes, float64(s.Runtimes[condition]), manager, string(condition.State), condition.Reason)
	}

	for _, cause := range fleet.Causes() {
		metrics <- counter(c.descs.resyncs, s.Resyncs[cause], manager, cause)
	}

	metrics <- gauge(c.descs.pending, float64(s.Pending), manager)
	metrics <- gauge(c.descs.oldest, s.OldestPending.Seconds(), manager)
	metrics <- gauge(c.descs.resyncsToCome, float64(s.ResyncsToCome), manager)
	metrics <- counter(c.descs.untracked, s.Untracked, manager)

	if !s.FirstExpiry.IsZero() {
		metrics <- gauge(c.descs.expiry, float64(s.FirstExpiry.Unix()), manager)
	}
}

func (c *fleetCollector) collectRuntimes(metrics chan<- prom.Metric) {
	var all []fleet.Status

	c.fleet.Range(func(s fleet.Status) bool {
		all = append(all, s)

		return true
	})
	slices.SortFunc(all, func(a, b fleet.Status) int {
		return cmp.Or(freshLast(&a)-freshLast(&b), cmp.Compare(a.Runtime, b.Runtime), cmp.Compare(a.Manager, b.Manager))
	})

	for _, s := range all[:min(len(all), c.perRuntime)] {
		labels := []string{string(s.Runtime), string(s.Manager)}
		metrics <- gauge(c.descs.state, 1, append(labels, string(s.State), s.Reason)...)
		metrics <- gauge(c.descs.heard, float64(s.LastSeen.UnixMilli())/1e3, labels...) //nolint:mnd // Milliseconds in a second.
		metrics <- gauge(c.descs.oldestOf, oldest(&s), labels...)
	}
}

func freshLast(s *fleet.Status) int {
	if s.State == fleet.Fresh {
		return 1
	}

	return 0
}

func oldest(s *fleet.Status) (seconds float64) {
	for _, p := range s.Replicas {
		if p.Heartbeat != nil {
			seconds = max(seconds, p.Heartbeat.OldestPending.Seconds())
		}
	}

	return seconds
}

func gauge(desc *prom.Desc, value float64, labels ...string) prom.Metric {
	return prom.MustNewConstMetric(desc, prom.GaugeValue, value, labels...)
}
