package prometheus_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// TestScrapesOfARealOutboxAreBalanced has an outbox too small for what it is offered, and a control plane that fails often.
func TestScrapesOfARealOutboxAreBalanced(t *testing.T) {
	const (
		managers = 3
		events   = 500
	)

	agent, reg := newAgent(t, prometheus.Options{MaxManagers: 2})

	box, err := outbox.New(flaky(), outbox.Options{
		Settle: -1, MaxKeys: 20, MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond,
		Hooks: outbox.Hooks{Counted: agent.Counted, Attempted: agent.Attempted},
	})
	if err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})

	var sources, others sync.WaitGroup

	others.Go(func() {
		if err := box.Start(ctx); err != nil {
			t.Error(err)
		}

		close(done)
	})
	others.Go(func() { scrapeUntil(t, reg, done) })

	for i := range managers {
		manager := core.Manager(fmt.Sprintf("manager-%d", i))

		sources.Go(func() {
			for n := range events {
				box.Accept(manager, core.WatchEvent{Watched: types.NamespacedName{Name: fmt.Sprintf("object-%d", n%40)}})
			}
		})
	}

	sources.Wait()
	stop()
	others.Wait()

	got, err := gatherFates(reg)
	if err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(sumOf(box.Counts()), got["manager-0"].add(got["manager-1"]).add(got["manager-2"]).add(got[prometheus.Other]),
		cmp.AllowUnexported(fates{})); diff != "" {
		t.Errorf("outbox and metrics differ (-outbox +metrics):\n%s", diff)
	}
}

// flaky fails every third time for a while, and every tenth for good.
func flaky() core.Forwarder {
	var calls atomic.Int64

	return core.ForwarderFunc(func(context.Context, core.Manager, []core.WatchEvent) error {
		switch n := calls.Add(1); {
		case n%10 == 0:
			return core.ErrInvalidObject
		case n%3 == 0:
			return core.ErrNotReady
		default:
			return nil
		}
	})
}

func sumOf(counts map[core.Manager]outbox.Counts) (sum fates) {
	for _, c := range counts {
		sum = sum.add(fates{
			accepted: float64(c.Accepted), delivered: float64(c.Delivered), coalesced: float64(c.Coalesced), pending: float64(c.Pending),
		})

		for _, n := range c.Dropped {
			sum.dropped += float64(n)
		}
	}

	return sum
}
