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
	"github.com/runtime-watcher/runtime-watcher/core/hook"
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

		err := f.Receiver().Start(t.Context(), map[core.Manager]core.Handler{"third": count(&theirs), "other": count(&theirs)})
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

// A summary adds up the runtimes of one manager only, and bounds the numbers that a heartbeat
// claims.
func TestSummaries(t *testing.T) {
	inBubble(t, fleet.Options{MaxStatuses: 3}, func(r *rig) {
		expiry := time.Now().Add(48 * time.Hour)
		r.observe(showing(with(beat("e", 1, 0), func(b *core.Heartbeat) {
			b.Pending = 3
			b.OldestPending = 20 * time.Second
		}), expiry.Add(-72*time.Hour), expiry), with(beat("f", 1, 0), func(b *core.Heartbeat) {
			b.Pending = 1 << 62
			b.OldestPending = 10 * time.Second
		}))

		settle()
		send(r.fleet, "a", kyma, changed("e", 7))
		send(r.fleet, "b", "other", message{})
		send(r.fleet, "c", "other", message{})

		want := map[core.Manager]*fleet.Summary{
			kyma: {
				Runtimes: map[fleet.Condition]int{{fleet.Fresh, ""}: 1, {fleet.Unknown, ""}: 1},
				Pending:  3 + 1<<32, OldestPending: 20 * time.Second, FirstExpiry: expiry,
				Resyncs: map[hook.ResyncCause]int64{"new_epoch": 1}, ResyncsToCome: 1, Events: 1, Versions: map[string]int{},
			},
			"other": {
				Runtimes: map[fleet.Condition]int{{fleet.Unknown, ""}: 1}, Resyncs: map[hook.ResyncCause]int64{}, Untracked: 1, Events: 1,
				Versions: map[string]int{},
			},
		}
		if diff := cmp.Diff(want, r.fleet.Summaries()); diff != "" {
			t.Errorf("summaries (-want +got):\n%s", diff)
		}
	})
}

// A runtime becomes silent because its certificate expires: the expiry stays in the summary until
// the runtime is there again, so that the alert about it does not end by itself.
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

// A runtime has a state for each of its managers. The worst state decides, whatever the order of
// the managers is.
func TestTheWorstManagerDecidesWhenToPoll(t *testing.T) {
	const fresh, unproved, stale = "fresh", "unproved", "stale"

	opts := fleet.Options{PollFresh: time.Hour, PollUnproved: 10 * time.Minute, PollOtherwise: time.Minute}

	for _, tt := range []struct {
		name   string
		states []string
		want   time.Duration
	}{
		{"all fresh", []string{fresh, fresh}, time.Hour},
		{"fresh, then unproved", []string{fresh, unproved}, 10 * time.Minute},
		{"unproved, then fresh", []string{unproved, fresh}, 10 * time.Minute},
		{"unproved, then stale", []string{unproved, stale}, time.Minute},
		{"stale, then unproved", []string{stale, unproved}, time.Minute},
		{"fresh, then stale", []string{fresh, stale}, time.Minute},
		{"unproved, fresh, stale", []string{unproved, fresh, stale}, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, opts, func(r *rig) {
				// A manager is known from its first request on, so the order of the requests is
				// the order in which the fleet asks them.
				for i, state := range tt.states {
					send(r.fleet, prod, manager(i), inState(state, 1))
				}

				// Silence makes the managers stale whose agent does not go on.
				for n := range uint64(6) {
					time.Sleep(interval)
					for i, state := range tt.states {
						if state != stale {
							send(r.fleet, prod, manager(i), inState(state, n+2))
						}
					}
				}

				if got := r.fleet.RequeueAfter(prod); got != tt.want {
					t.Errorf("managers that are %v are polled after %v, want %v", tt.states, got, tt.want)
				}
			})
		})
	}
}

func manager(i int) core.Manager { return core.Manager("manager-" + strconv.Itoa(i)) }

// inState is a heartbeat of an agent that is proved by its canary, unless its state is "unproved".
func inState(state string, number uint64) message {
	return with(beat("e", number, 0), func(b *core.Heartbeat) {
		if state == "unproved" {
			b.Canary = core.CanaryOff
		}
	})
}

// Numbers of a heartbeat come from a runtime. None of them may lower what others have.
func TestOneRuntimeHidesNoBacklogOfOthers(t *testing.T) {
	pending := func(n int64, oldest time.Duration) message {
		return with(beat("e", 1, 0), func(b *core.Heartbeat) {
			b.Pending = n
			b.OldestPending = oldest
		})
	}

	inBubble(t, fleet.Options{}, func(r *rig) {
		send(r.fleet, "a", kyma, pending(7, 20*time.Second))
		send(r.fleet, "b", kyma, pending(-1_000_000, -time.Hour))
		send(r.fleet, "c", kyma, pending(5, 10*time.Second))

		summary := r.fleet.Summaries()[kyma]
		if summary.Pending != 12 || summary.OldestPending != 20*time.Second {
			t.Errorf("pending %d for %v, want 12 for 20s", summary.Pending, summary.OldestPending)
		}
	})
}

// The handler refuses a resync while the runtime is forgotten. The resync must go with the runtime:
// nothing would ever end its retries.
func TestAResyncEndsWithItsRuntime(t *testing.T) {
	for _, tt := range []struct {
		name   string
		forget bool
	}{
		{"control: the runtime stays, so the resync is retried", false},
		{"the runtime is forgotten during the delivery", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				begun := make(chan struct{}, 1000)
				goOn := make(chan struct{})

				f := newFleet(t, fleet.Options{})
				stop := start(t, f, kyma, core.HandlerFunc(func(context.Context, core.Delivery) error {
					calls.Add(1)
					begun <- struct{}{}
					<-goOn
					return core.ErrNotReady
				}))

				send(f, prod, kyma, beat("e", 1, 1))
				<-begun
				if tt.forget {
					f.Forget(prod)
				}
				close(goOn)

				synctest.Wait()
				before := calls.Load()
				time.Sleep(5 * time.Minute)
				more := calls.Load() - before

				if tt.forget && more > 0 {
					t.Errorf("%d more calls for a forgotten runtime in 5 minutes, want none", more)
				}
				if !tt.forget && more == 0 {
					t.Error("no retry of a resync that the handler refused")
				}
				stop()
			})
		})
	}
}
