package prometheus_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"pgregory.net/rapid"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// fates are what one scrape says of one manager's events.
type fates struct{ accepted, delivered, coalesced, dropped, pending float64 }

func (f fates) add(other fates) fates {
	return fates{
		f.accepted + other.accepted, f.delivered + other.delivered, f.coalesced + other.coalesced,
		f.dropped + other.dropped, f.pending + other.pending,
	}
}

func (f fates) wrong() error {
	switch {
	case f.accepted != f.delivered+f.coalesced+f.dropped+f.pending:
		return fmt.Errorf("does not add up: %+v", f)
	case min(f.accepted, f.delivered, f.coalesced, f.dropped, f.pending) < 0:
		return fmt.Errorf("less than nothing: %+v", f)
	default:
		return nil
	}
}

// gatherFates scrapes once.
func gatherFates(reg prom.Gatherer) (map[string]fates, error) {
	families, err := reg.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather: %w", err)
	}

	all := make(map[string]fates)

	for _, family := range families {
		for _, metric := range family.GetMetric() {
			manager := labelOf(metric, "manager")
			value := metric.GetCounter().GetValue()

			switch family.GetName() {
			case "runtime_watcher_agent_events_accepted_total":
				all[manager] = all[manager].add(fates{accepted: value})
			case "runtime_watcher_agent_events_delivered_total":
				all[manager] = all[manager].add(fates{delivered: value})
			case "runtime_watcher_agent_events_coalesced_total":
				all[manager] = all[manager].add(fates{coalesced: value})
			case "runtime_watcher_agent_events_dropped_total":
				all[manager] = all[manager].add(fates{dropped: value})
			case "runtime_watcher_agent_events_pending":
				all[manager] = all[manager].add(fates{pending: metric.GetGauge().GetValue()})
			}
		}
	}

	return all, nil
}

func labelOf(metric *dto.Metric, name string) string {
	for _, label := range metric.GetLabel() {
		if label.GetName() == name {
			return label.GetValue()
		}
	}

	return ""
}

// TestEveryScrapeIsBalanced changes and scrapes concurrently. Metrics that are read one after the other fail it.
func TestEveryScrapeIsBalanced(t *testing.T) {
	const (
		writers = 4
		rounds  = 2000
	)

	agent, reg := newAgent(t, prometheus.Options{MaxManagers: 2})
	done := make(chan struct{})

	var working, scraping sync.WaitGroup

	for i := range writers {
		manager := core.Manager(fmt.Sprintf("manager-%d", i))

		working.Go(func() { live(agent, manager, rounds) })
	}

	scraping.Go(func() { scrapeUntil(t, reg, done) })
	working.Wait()
	close(done)
	scraping.Wait()

	final, err := gatherFates(reg)
	if err != nil {
		t.Fatal(err)
	}

	var sum fates
	for _, f := range final {
		sum = sum.add(f)
	}

	want := fates{accepted: writers * rounds * 4, delivered: writers * rounds * 2, coalesced: writers * rounds, dropped: writers * rounds}
	if sum != want {
		t.Errorf("in the end got %+v, want %+v", sum, want)
	}
}

// live takes events of a manager through all that can happen to them.
func live(agent *prometheus.Agent, manager core.Manager, rounds int) {
	for range rounds {
		agent.Counted(manager, outbox.Counts{Accepted: 1, Pending: 1})
		agent.Counted(manager, outbox.Counts{Accepted: 1, Coalesced: 1})
		agent.Counted(manager, outbox.Counts{Accepted: 1, Pending: 1})
		agent.Counted(manager, outbox.Counts{Delivered: 2, Pending: -2})
		agent.Attempted(manager, 2, time.Millisecond, nil)
		agent.Counted(manager, outbox.Counts{Accepted: 1, Dropped: map[string]int64{outbox.ReasonOverflow: 1}})
		agent.Reviewed(manager, "accepted", time.Microsecond)
	}
}

func scrapeUntil(t *testing.T, reg prom.Gatherer, done <-chan struct{}) {
	t.Helper()

	for scrapes := 1; ; scrapes++ {
		all, err := gatherFates(reg)
		if err != nil {
			t.Error(err)

			return
		}

		for manager, f := range all {
			if err := f.wrong(); err != nil {
				t.Errorf("scrape %d, %s: %v", scrapes, manager, err)

				return
			}
		}

		select {
		case <-done:
			return
		default:
		}
	}
}

// TestLedgerStaysBalancedAndBounded lives the lives of events of more managers than have series, and forgets managers meanwhile.
func TestLedgerStaysBalancedAndBounded(t *testing.T) {
	const maxManagers = 3

	managers := []core.Manager{"a", "b", "c", "d", "e", "f"}

	rapid.Check(t, func(rt *rapid.T) {
		reg := prom.NewPedanticRegistry()

		agent, err := prometheus.NewAgent(reg, prometheus.Options{MaxManagers: maxManagers})
		if err != nil {
			rt.Fatal(err)
		}

		// pending is what a real outbox would know.
		pending := make(map[core.Manager]int64)
		manager := rapid.SampledFrom(managers)

		rt.Repeat(map[string]func(*rapid.T){
			"accept": func(rt *rapid.T) {
				m := manager.Draw(rt, "manager")
				pending[m]++
				agent.Counted(m, outbox.Counts{Accepted: 1, Pending: 1})
			},
			"coalesce": func(rt *rapid.T) {
				agent.Counted(manager.Draw(rt, "manager"), outbox.Counts{Accepted: 1, Coalesced: 1})
			},
			"deliver": func(rt *rapid.T) {
				m := manager.Draw(rt, "manager")
				n := rapid.Int64Range(0, pending[m]).Draw(rt, "n")
				pending[m] -= n
				agent.Counted(m, outbox.Counts{Delivered: n, Pending: -n})
			},
			"drop": func(rt *rapid.T) {
				m := manager.Draw(rt, "manager")
				n := pending[m]
				pending[m] = 0
				agent.Counted(m, outbox.Counts{Dropped: map[string]int64{"malformed": n}, Pending: -n})
			},
			"review": func(rt *rapid.T) { agent.Reviewed(manager.Draw(rt, "manager"), "unchanged", time.Microsecond) },
			"forget": func(rt *rapid.T) { agent.Forget(manager.Draw(rt, "manager")) },
			"": func(rt *rapid.T) {
				all, err := gatherFates(reg)
				if err != nil {
					rt.Fatal(err)
				}

				checkLedger(rt, all, pending, maxManagers)
			},
		})
	})
}

func checkLedger(rt *rapid.T, all map[string]fates, pending map[core.Manager]int64, maxManagers int) {
	var sum float64

	for manager, f := range all {
		if err := f.wrong(); err != nil {
			rt.Fatalf("%q: %v", manager, err)
		}

		if manager != "" && manager != prometheus.Other && f.pending != 0 && f.pending != float64(pending[core.Manager(manager)]) {
			rt.Fatalf("%s: %v pending, want %d", manager, f.pending, pending[core.Manager(manager)])
		}

		sum += f.pending
	}

	delete(all, "")
	delete(all, prometheus.Other)

	if len(all) > maxManagers {
		rt.Fatalf("series for %v, want at most %d managers", slices.Sorted(maps.Keys(all)), maxManagers)
	}

	var want int64
	for _, n := range pending {
		want += n
	}

	if sum != float64(want) {
		rt.Fatalf("%v pending in all, want %d", sum, want)
	}
}
