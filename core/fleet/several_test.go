package fleet_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

func count(n *atomic.Int64) core.HandlerFunc {
	return func(context.Context, core.Delivery) error {
		n.Add(1)
		return nil
	}
}

// Two listeners may share a fleet: each delivers what is for its own managers, once.
func TestStartForSeveralManagers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ours, theirs, changes atomic.Int64
		f := newFleet(t, fleet.Options{})
		f.OnChange(func(fleet.Transition) { changes.Add(1) })
		first := start(t, f, kyma, count(&ours))
		second := start(t, f, "other", count(&theirs))
		synctest.Wait()
		err := f.Start(t.Context(), map[core.Manager]core.Handler{"third": count(&theirs), "other": count(&theirs)})
		if err == nil || !strings.Contains(err.Error(), `want one handler for each manager: "other"`) {
			t.Errorf("a manager with two handlers: %v", err)
		}
		for n := range 10 {
			runtime := core.RuntimeID(strconv.Itoa(n))
			send(f, runtime, kyma, beat("e", 1, 1))
			send(f, runtime, "other", beat("e", 1, 1))
		}
		settle()
		if ours.Load() != 10 || theirs.Load() != 10 {
			t.Errorf("%d and %d resyncs, want 10 for each manager", ours.Load(), theirs.Load())
		}
		first() // The other one goes on with the review.
		time.Sleep(3 * interval)
		if n := changes.Load(); n != 40 {
			t.Errorf("%d changes, want 20 to fresh and 20 to stale", n)
		}
		start(t, f, kyma, count(&ours))() // It is free again.
		second()
	})
}

func TestHandlerThatHangsDelaysNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var resyncs atomic.Int64
		f := newFleet(t, fleet.Options{})
		defer start(t, f, "hangs", core.HandlerFunc(func(ctx context.Context, _ core.Delivery) error {
			<-ctx.Done()
			return ctx.Err()
		}))()
		defer start(t, f, kyma, count(&resyncs))()
		for n := range 100 {
			send(f, core.RuntimeID(strconv.Itoa(n)), "hangs", changed("e", 5))
		}
		stale := make(chan time.Duration, 1)
		began := time.Now()
		f.OnChange(func(change fleet.Transition) {
			if change.To.State == fleet.Stale {
				stale <- time.Since(began)
			}
		})
		send(f, prod, kyma, beat("e", 7, 1))
		if took := <-stale; took > 2*interval+2*time.Second {
			t.Errorf("silence was noticed after %v, want 2 intervals and a second", took)
		}
		if n := resyncs.Load(); n != 1 {
			t.Errorf("%d resyncs for the manager that does not hang, want 1", n)
		}
	})
}

func TestSummaries(t *testing.T) {
	inBubble(t, fleet.Options{MaxStatuses: 3}, func(r *rig) {
		expiry := time.Now().Add(48 * time.Hour)
		r.observe(showing(with(beat("e", 1, 0), func(b *core.Heartbeat) {
			b.Pending, b.OldestPending = 3, 20*time.Second
		}), expiry.Add(-72*time.Hour), expiry), with(beat("f", 1, 0), func(b *core.Heartbeat) {
			b.Pending, b.OldestPending = 1<<62, 10*time.Second
		}))
		settle()
		send(r.fleet, "a", kyma, changed("e", 7))
		send(r.fleet, "b", "other", message{})
		send(r.fleet, "c", "other", message{})
		want := map[core.Manager]*fleet.Summary{
			kyma: {
				Runtimes: map[fleet.Condition]int{{fleet.Fresh, ""}: 1, {fleet.Unknown, ""}: 1},
				Pending:  3 + 1<<32, OldestPending: 20 * time.Second, FirstExpiry: expiry,
				Resyncs: map[string]int64{"new_epoch": 1}, ResyncsToCome: 1, Events: 1,
			},
			"other": {
				Runtimes: map[fleet.Condition]int{{fleet.Unknown, ""}: 1}, Resyncs: map[string]int64{}, Untracked: 1, Events: 1,
			},
		}
		if diff := cmp.Diff(want, r.fleet.Summaries()); diff != "" {
			t.Errorf("summaries (-want +got):\n%s", diff)
		}
	})
}

// A runtime becomes silent because its certificate expires: the expiry stays in the summary until the
// runtime is there again, so that the alert about it does not end by itself.
func TestExpiryOfASilentRuntimeIsKept(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		expiry := time.Now().Add(time.Minute)
		r.observe(showing(beat("e", 1, 0), expiry.Add(-time.Hour), expiry))
		send(r.fleet, "dead", kyma, showing(beat("d", 1, 0), expiry.Add(-time.Hour), expiry.Add(time.Hour)))
		time.Sleep(3 * time.Minute)
		summary := r.fleet.Summaries()[kyma]
		if stale := summary.Runtimes[fleet.Condition{State: fleet.Stale}]; stale != 2 || !summary.FirstExpiry.Equal(expiry) {
			t.Errorf("%d stale runtimes and first expiry %s, want 2 and %s", stale, summary.FirstExpiry, expiry)
		}
		next := time.Now().Add(48 * time.Hour)
		r.observe(showing(beat("f", 1, 0), expiry, next))
		if summary := r.fleet.Summaries()[kyma]; !summary.FirstExpiry.Equal(next) {
			t.Errorf("first expiry %s after the return, want %s", summary.FirstExpiry, next)
		}
	})
}
