package fleet_test

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// Forget ends all resyncs of its runtime, and none of another one.
func TestForgetEndsTheResyncsOfEachManager(t *testing.T) {
	f := newFleet(t, fleet.Options{})
	toCome := func() int { return f.Summaries()[kyma].ResyncsToCome + f.Summaries()["other"].ResyncsToCome }
	for _, manager := range []core.Manager{kyma, "other"} {
		send(f, prod, manager, beat("e", 1, 1))
		send(f, "beside", manager, beat("e", 1, 1))
	}

	if n := toCome(); n != 4 {
		t.Fatalf("control: %d resyncs to come, want 4", n)
	}

	f.Forget(prod)
	if n := toCome(); n != 2 {
		t.Errorf("%d resyncs to come after Forget, want the 2 of the other runtime", n)
	}
}

// A replica that does not lead keeps its expectations for later. Each call removes its own only.
func TestExpectationsOfAReplicaThatDoesNotLead(t *testing.T) {
	for name, tt := range map[string]struct {
		forget func(f *fleet.Fleet)
		want   string
	}{
		"control":       {func(*fleet.Fleet) {}, "beside/kyma beside/other prod/kyma prod/other"},
		"Forget":        {func(f *fleet.Fleet) { f.Forget(prod) }, "beside/kyma beside/other"},
		"ForgetManager": {func(f *fleet.Fleet) { f.ForgetManager(prod, "other") }, "beside/kyma beside/other prod/kyma"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, fleet.Options{})
				handler := &leading{}
				defer start(t, f, kyma, handler)()
				defer start(t, f, "other", handler)()

				for _, runtime := range []core.RuntimeID{prod, "beside"} {
					f.Expect(runtime, kyma)
					f.Expect(runtime, "other")
				}

				tt.forget(f)
				handler.leads.Store(true)
				time.Sleep(interval)

				if known := strings.Join(knownPairs(f), " "); known != tt.want {
					t.Errorf("expected after the election: %s, want %s", known, tt.want)
				}
			})
		})
	}
}

// An operator that calls Expect in each reconcile must still learn that a name is wrong.
func TestRepeatedExpectationsDelayNoWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		f := newFleet(t, fleet.Options{Logger: slog.New(slog.NewTextHandler(&out, nil))})
		stop := start(t, f, kyma, &leading{})

		for range 20 {
			f.Expect(prod, "misspelt")
			time.Sleep(20 * time.Second)
		}

		stop()
		if n := strings.Count(out.String(), "manager=misspelt"); n != 1 {
			t.Errorf("%d lines name the manager, want 1: %s", n, &out)
		}
	})
}

// While a resync is delivered, another cause comes. The delivery fails, and the later cause stays.
func TestALaterCauseOutlastsADeliveryThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := make(chan struct{}, 10)
		goOn := make(chan error)
		f := newFleet(t, fleet.Options{})
		stop := start(t, f, kyma, core.HandlerFunc(func(context.Context, core.Delivery) error {
			begun <- struct{}{}
			return <-goOn
		}))
		send(f, prod, kyma, beat("e", 1, 1))
		<-begun
		send(f, prod, kyma, changed("e", 5))
		goOn <- core.ErrNotReady
		<-begun
		goOn <- nil
		synctest.Wait()

		if resyncs := f.Summaries()[kyma].Resyncs; len(resyncs) != 1 || resyncs["gap"] != 1 {
			t.Errorf("resyncs %v, want one for the gap", resyncs)
		}
		stop()
	})
}

// A handler that ignores its context hangs for one runtime, which asks for a resync again and
// again. It takes one of the places for deliveries, and not all of them.
func TestARuntimeWhoseHandlerHangsTakesOnePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var delivered atomic.Int64
		goOn := make(chan struct{})
		f := newFleet(t, fleet.Options{})
		stop := start(t, f, kyma, core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
			if d.Runtime == "hangs" {
				<-goOn
			}
			delivered.Add(1)
			return nil
		}))

		for n := range 40 {
			send(f, "hangs", kyma, changed("epoch-"+strconv.Itoa(n), 1))
			time.Sleep(5 * time.Second)
		}

		send(f, prod, kyma, beat("e", 1, 1))
		time.Sleep(5 * time.Second)
		if n := delivered.Load(); n != 1 {
			t.Errorf("%d resyncs were delivered, want that of the other runtime", n)
		}

		close(goOn)
		time.Sleep(5 * time.Second)
		if n := delivered.Load(); n != 3 {
			t.Errorf("%d resyncs were delivered, want the one that hung and a later one, too", n)
		}
		stop()
	})
}

// ForgetAfter counts from the last request. A runtime that is known for longer, and silent for a
// short time, stays.
func TestForgetAfterCountsFromTheLastRequest(t *testing.T) {
	inBubble(t, fleet.Options{ForgetAfter: time.Hour}, func(r *rig) {
		send(r.fleet, "beside", kyma, beat("e", 1, 0))
		for n := range uint64(240) { // Two hours.
			r.observe(beat("e", n+1, 0))
			time.Sleep(interval)
		}

		time.Sleep(59 * time.Minute)
		r.wantState(fleet.Stale, "")
		if known := knownPairs(r.fleet); len(known) != 1 {
			t.Errorf("known are %v, want the runtime that sent less than an hour ago", known)
		}

		time.Sleep(2 * time.Minute)
		if known := knownPairs(r.fleet); len(known) != 0 {
			t.Errorf("known are %v after an hour of silence, want none", known)
		}
	})
}

// A review takes slices of 500 records, and all of them.
func TestEachOfManyRuntimesIsReviewed(t *testing.T) {
	const many = 1001
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, fleet.Options{})
		var stale atomic.Int64
		f.OnChange(func(change fleet.Transition) {
			if change.To.State == fleet.Stale {
				stale.Add(1)
			}
		})

		stop := start(t, f, kyma, core.HandlerFunc(func(context.Context, core.Delivery) error { return nil }))
		for n := range many {
			send(f, core.RuntimeID(strconv.Itoa(n)), kyma, beat("e", 1, 0))
		}

		time.Sleep(2*interval + 2*time.Second)
		if n := stale.Load(); n != many {
			t.Errorf("%d of %d silent runtimes are found within two seconds", n, many)
		}
		stop()
	})
}

// begin observes the first heartbeat of several replicas, one each second.
func (r *rig) begin(epochs ...string) {
	for _, epoch := range epochs {
		r.observe(with(beat(epoch, 1, 0), func(b *core.Heartbeat) { b.Interval = time.Minute }))
		time.Sleep(time.Second)
	}
}

// A runtime has room for eight replicas. The next one replaces one that is gone, or else the one
// that has sent nothing for the longest time.
func TestTheReplicaThatANewOneReplaces(t *testing.T) {
	epochs := func(r *rig) string {
		var all []string
		for _, replica := range r.fleet.Get(prod, kyma).Replicas {
			all = append(all, replica.Epoch)
		}
		return strings.Join(all, "")
	}

	eachPlay(t, map[string]func(r *rig){
		"all speak": func(r *rig) {
			r.begin("a", "b", "c", "d", "e", "f", "g", "h", "a")
			r.begin("i") // The second heartbeat of "a" has an old number, and shows that it lives.
			if have := epochs(r); have != "acdefghi" {
				r.t.Errorf("replicas %s, want acdefghi", have)
			}
		},
		"one is gone": func(r *rig) {
			r.begin("a", "b", "c", "d", "e", "f", "g")
			r.observe(kept(changed("h", 1)))
			r.observe(leaving("h", 1, 1)) // The stream still has an event of it.
			r.begin("i")
			if have := epochs(r); have != "abcdefgi" {
				r.t.Errorf("replicas %s, want abcdefgi", have)
			}
		},
	})
}

// A replica that has left trusts nothing any more. Its event comes later, so it is remembered.
func TestAReplicaThatHasLeftHoldsUpNoRotation(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(trusting("e", 1, "new"), kept(changed("f", 1)), trusting("f", 1, "old"))
		if missing := r.fleet.WithoutCA("new"); len(missing) != 1 {
			t.Errorf("control: runtimes without the CA are %q, want one", missing)
		}

		r.observe(leaving("f", 2, 1))
		if missing := r.fleet.WithoutCA("new"); len(missing) != 0 {
			t.Errorf("runtimes without the CA are %q, want none", missing)
		}
	})
}

// The first of several certificates to expire counts, whatever the order is.
func TestTheFirstExpiryOfSeveral(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		now := time.Now()
		for n, days := range []int{40, 30, 50} {
			for _, epoch := range []string{"e", "f"} {
				expiry := now.Add(time.Duration(days) * 24 * time.Hour)
				if epoch == "f" {
					expiry = expiry.Add(time.Hour)
				}
				send(r.fleet, core.RuntimeID(strconv.Itoa(n)), kyma, showing(beat(epoch, 1, 0), now, expiry))
			}
		}

		if have, want := r.fleet.Summaries()[kyma].FirstExpiry, now.Add(30*24*time.Hour); !have.Equal(want) {
			t.Errorf("first expiry %s, want %s", have, want)
		}
	})
}

// A silence ends the proofs of all replicas. One of them returns with an event, and the other one
// with a heartbeat that proves nothing.
func TestASilenceEndsTheProofsOfAllReplicas(t *testing.T) {
	for _, returns := range []string{"e", "f"} {
		inBubble(t, fleet.Options{}, func(r *rig) {
			r.observe(started("e", "f")...)
			time.Sleep(5 * time.Minute)
			r.observe(changed(returns, 2))

			for _, epoch := range []string{"e", "f"} {
				r.observe(with(beat(epoch, 2, 2), func(b *core.Heartbeat) { b.Canary = core.CanaryOff }))
			}

			r.wantState(fleet.Unproved, "")
		})
	}
}

// knownPairs returns each runtime with its manager, sorted.
func knownPairs(f *fleet.Fleet) (known []string) {
	f.Range(func(s fleet.Status) bool {
		known = append(known, string(s.Runtime)+"/"+string(s.Manager))
		return true
	})
	slices.Sort(known)
	return known
}
