package watchermetrics_test

import (
	"context"
	"fmt"
	"strconv"
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

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// discard acknowledges every batch.
var discard = core.ForwarderFunc(func(context.Context, core.Manager, core.Batch) error { return nil })

// newOutbox returns an outbox that agent reads.
func newOutbox(t *testing.T, agent *watchermetrics.Agent, forwarder core.Forwarder, opts outbox.Options) *outbox.Outbox {
	t.Helper()

	opts.Hooks.Attempted = agent.Attempted
	box := must(outbox.New(forwarder, opts))(t)
	agent.ReadOutbox(box)

	return box
}

// fates are the events of one manager, or of all, by what became of them: accepted, delivered,
// coalesced, dropped or pending. Zeros are missing.
type fates map[string]float64

func (f fates) add(fate string, n float64) {
	if n != 0 {
		f[fate] += n
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
		fate, ok := strings.CutPrefix(family.GetName(), "runtime_watcher_agent_events_")
		if !ok {
			continue
		}

		for _, metric := range family.GetMetric() {
			manager := labelOf(metric, "manager")
			if all[manager] == nil {
				all[manager] = fates{}
			}

			all[manager].add(strings.TrimSuffix(fate, "_total"), metric.GetCounter().GetValue()+metric.GetGauge().GetValue())
		}
	}

	return all
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
	agent, reg := newAgent(t, watchermetrics.Options{MaxManagers: 2})
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
		sources.Go(func() {
			for n := range events {
				box.Accept(core.Manager(fmt.Sprint("manager-", i)), core.WatchEvent{Watched: types.NamespacedName{Name: fmt.Sprint("object-", n%40)}})
			}
		})
	}

	sources.Wait()
	stop()
	others.Wait()
	got := fates{}

	for _, f := range gatherFates(t, reg) {
		for fate, n := range f {
			got.add(fate, n)
		}
	}

	if got["accepted"] < managers*events || got["delivered"] == 0 || got["coalesced"] == 0 || got["dropped"] == 0 {
		t.Errorf("got %+v, want %d events or more, and some of each fate", got, managers*events)
	}
	if diff := cmp.Diff(sumOf(box.Counts()), got); diff != "" {
		t.Errorf("outbox and metrics differ (-outbox +metrics):\n%s", diff)
	}
}

func scrapeUntil(t *testing.T, reg prom.Gatherer, done <-chan struct{}) {
	t.Helper()
	for scrapes := 1; ; scrapes++ {
		for manager, f := range gatherFates(t, reg) {
			sum := f["delivered"] + f["coalesced"] + f["dropped"] + f["pending"]
			if f["accepted"] != sum || min(f["delivered"], f["coalesced"], f["dropped"], f["pending"]) < 0 {
				t.Errorf("scrape %d, %s: accepted is not the sum of the others, or a value is negative: %v", scrapes, manager, f)
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

func sumOf(counts map[core.Manager]outbox.Counts) fates {
	sum := fates{}
	for _, c := range counts {
		sum.add("accepted", float64(c.Accepted))
		sum.add("delivered", float64(c.Delivered))
		sum.add("coalesced", float64(c.Coalesced))
		sum.add("pending", float64(c.Pending))

		for _, n := range c.Dropped {
			sum.add("dropped", float64(n))
		}
	}

	return sum
}

// Heartbeats show that the control plane answers. They are no events.
func TestHeartbeatsAreNoEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent, reg := newAgent(t, watchermetrics.Options{})
		box := newOutbox(t, agent, discard, outbox.Options{
			Epoch: "epoch", HeartbeatInterval: time.Second, Managers: []core.Manager{"kyma"}, Resend: []time.Duration{},
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()

		go func() { _ = box.Start(ctx) }()
		box.Accept("kyma", core.WatchEvent{Watched: types.NamespacedName{Name: "object"}})
		time.Sleep(time.Minute)
		wantLines(t, scrape(t, reg), `forward_events_total{manager="kyma",result="ok"} 1`+"\n")
		stop()
		synctest.Wait()
		before := lastSuccess(t, reg)
		time.Sleep(time.Hour)
		if after := lastSuccess(t, reg); before < 0 || before > 2 || after != before+3600 {
			t.Errorf("the last success is %v s ago, and %v s an hour later, want at most 2 s, and an hour more", before, after)
		}
	})
}

// lastSuccess returns the age of the last success in seconds.
func lastSuccess(t *testing.T, reg *prom.Registry) float64 {
	t.Helper()

	_, value, found := strings.Cut(scrape(t, reg), `runtime_watcher_agent_forward_last_success_age_seconds{manager="kyma"} `)
	if !found {
		t.Fatal("there is no age of the last success")
	}

	value, _, _ = strings.Cut(value, "\n")
	age, err := strconv.ParseFloat(value, 64)
	if err != nil {
		t.Fatal(err)
	}

	return age
}

// The age is the age of the oldest event, however many came later.
func TestOldestPendingEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent, reg := newAgent(t, watchermetrics.Options{})
		box := newOutbox(t, agent, discard, outbox.Options{})
		box.Accept("kyma", core.WatchEvent{Watched: types.NamespacedName{Name: "first"}})
		time.Sleep(time.Minute)
		box.Accept("kyma", core.WatchEvent{Watched: types.NamespacedName{Name: "second"}})
		wantLines(t, scrape(t, reg), `runtime_watcher_agent_oldest_event_pending_seconds{manager="kyma"} 60`+"\n")
	})
}

func TestContractInUseChanges(t *testing.T) {
	agent, reg := newAgent(t, watchermetrics.Options{})
	agent.ContractInUse(hook.ContractInUse{Manager: "kyma", Contract: "v3"})
	agent.ContractInUse(hook.ContractInUse{Manager: "kyma", Contract: "v2"})
	wantLines(t, scrape(t, reg), `agent_contract_in_use{contract="v2",manager="kyma"} 1`+"\n",
		`agent_contract_in_use{contract="v3",manager="kyma"} 0`+"\n")
}
