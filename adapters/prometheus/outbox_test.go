package prometheus_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	prom "github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// discard acknowledges every batch.
var discard = core.ForwarderFunc(func(context.Context, core.Manager, core.Batch) error { return nil })

// newOutbox returns an outbox that agent reads.
func newOutbox(t *testing.T, agent *prometheus.Agent, forwarder core.Forwarder, opts outbox.Options) *outbox.Outbox {
	t.Helper()
	opts.Hooks.Attempted = agent.Attempted
	box, err := outbox.New(forwarder, opts)
	if err != nil {
		t.Fatal(err)
	}
	agent.ReadOutbox(box)
	return box
}

// fates are the events of one manager in one scrape.
type fates struct{ accepted, delivered, coalesced, dropped, pending float64 }

func (f fates) add(other fates) fates {
	return fates{
		f.accepted + other.accepted, f.delivered + other.delivered, f.coalesced + other.coalesced,
		f.dropped + other.dropped, f.pending + other.pending,
	}
}

func (f fates) check() error {
	switch {
	case f.accepted != f.delivered+f.coalesced+f.dropped+f.pending:
		return fmt.Errorf("accepted is not the sum of the others: %+v", f)
	case min(f.accepted, f.delivered, f.coalesced, f.dropped, f.pending) < 0:
		return fmt.Errorf("a value is negative: %+v", f)
	default:
		return nil
	}
}

// gatherFates scrapes once. The result is by manager.
func gatherFates(t *testing.T, reg prom.Gatherer) map[string]fates {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Error(err)
	}
	all := make(map[string]fates)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if f, ok := fateOf(family.GetName(), metric); ok {
				manager := labelOf(metric, "manager")
				all[manager] = all[manager].add(f)
			}
		}
	}
	return all
}

func fateOf(name string, metric *dto.Metric) (f fates, ok bool) {
	value := metric.GetCounter().GetValue()
	switch strings.TrimPrefix(name, "runtime_watcher_agent_events_") {
	case "accepted_total":
		return fates{accepted: value}, true
	case "delivered_total":
		return fates{delivered: value}, true
	case "coalesced_total":
		return fates{coalesced: value}, true
	case "dropped_total":
		return fates{dropped: value}, true
	case "pending":
		return fates{pending: metric.GetGauge().GetValue()}, true
	default:
		return fates{}, false
	}
}

func labelOf(metric *dto.Metric, name string) string {
	for _, label := range metric.GetLabel() {
		if label.GetName() == name {
			return label.GetValue()
		}
	}
	return ""
}

// The outbox is too small, and the control plane fails often.
func TestEveryScrapeOfAnOutboxIsBalanced(t *testing.T) {
	const (
		managers = 4
		events   = 2000
	)
	agent, reg := newAgent(t, prometheus.Options{MaxManagers: 2})
	box := newOutbox(t, agent, flaky(), outbox.Options{
		Settle: -1, MaxKeys: 20, MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond,
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	var sources, others sync.WaitGroup
	others.Go(func() {
		defer close(done)
		if err := box.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	others.Go(func() { scrapeUntil(t, reg, done) })
	for i := range managers {
		sources.Go(func() { offer(box, core.Manager(fmt.Sprintf("manager-%d", i)), events) })
	}
	sources.Wait()
	stop()
	others.Wait()
	var got fates
	for _, f := range gatherFates(t, reg) {
		got = got.add(f)
	}
	if got.accepted < managers*events || got.delivered == 0 || got.coalesced == 0 || got.dropped == 0 {
		t.Errorf("got %+v, want %d events or more, and some of each fate", got, managers*events)
	}
	if diff := cmp.Diff(sumOf(box.Counts()), got, cmp.AllowUnexported(fates{})); diff != "" {
		t.Errorf("outbox and metrics differ (-outbox +metrics):\n%s", diff)
	}
}

func offer(box *outbox.Outbox, manager core.Manager, events int) {
	for n := range events {
		box.Accept(manager, core.WatchEvent{Watched: types.NamespacedName{Name: fmt.Sprintf("object-%d", n%40)}})
	}
}

func scrapeUntil(t *testing.T, reg prom.Gatherer, done <-chan struct{}) {
	t.Helper()
	for scrapes := 1; ; scrapes++ {
		for manager, f := range gatherFates(t, reg) {
			if err := f.check(); err != nil {
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

// flaky fails every third time for a while, and every tenth for good.
func flaky() core.Forwarder {
	var calls atomic.Int64
	return core.ForwarderFunc(func(_ context.Context, _ core.Manager, batch core.Batch) error {
		switch n := calls.Add(1); {
		case n%10 == 0 && len(batch.Events) > 0:
			return core.EventErrors{0: coretest.Refusal{Label: "invalid_object", Permanent: true}.Err()}
		case n%3 == 0:
			return core.ErrNotReady
		default:
			return nil
		}
	})
}

func sumOf(counts map[core.Manager]outbox.Counts) (sum fates) {
	for _, c := range counts {
		f := fates{float64(c.Accepted), float64(c.Delivered), float64(c.Coalesced), 0, float64(c.Pending)}
		for _, n := range c.Dropped {
			f.dropped += float64(n)
		}
		sum = sum.add(f)
	}
	return sum
}

// Heartbeats show that the control plane answers. They are no events.
func TestHeartbeatsAreNoEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent, reg := newAgent(t, prometheus.Options{})
		box := newOutbox(t, agent, discard, outbox.Options{
			Epoch: "epoch", HeartbeatInterval: time.Second, Managers: []core.Manager{"kyma"}, Resend: []time.Duration{},
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = box.Start(ctx) }()
		box.Accept("kyma", core.WatchEvent{Watched: types.NamespacedName{Name: "object"}})
		time.Sleep(time.Minute)
		text := scrape(t, reg)
		if want := `forward_events_total{manager="kyma",result="ok"} 1` + "\n"; !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
		// The clock of a bubble begins at 946,684,800 s.
		for _, beats := range []string{`last_success_timestamp_seconds{manager="kyma"} 9.466848`} {
			if !strings.Contains(text, beats) {
				t.Errorf("no %s in\n%s", beats, text)
			}
		}
	})
}

func TestOldestPendingEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent, reg := newAgent(t, prometheus.Options{})
		box := newOutbox(t, agent, discard, outbox.Options{})
		box.Accept("kyma", core.WatchEvent{Watched: types.NamespacedName{Name: "first"}})
		time.Sleep(time.Minute)
		box.Accept("kyma", core.WatchEvent{Watched: types.NamespacedName{Name: "second"}})
		want := `runtime_watcher_agent_oldest_event_pending_seconds{manager="kyma"} 60` + "\n"
		if text := scrape(t, reg); !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	})
}

func TestContractInUseChanges(t *testing.T) {
	agent, reg := newAgent(t, prometheus.Options{})
	agent.ContractInUse("kyma", "v3")
	agent.ContractInUse("kyma", "v2")
	text := scrape(t, reg)
	for _, want := range []string{`{contract="v2",manager="kyma"} 1`, `{contract="v3",manager="kyma"} 0`} {
		if !strings.Contains(text, "runtime_watcher_agent_contract_in_use"+want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}
