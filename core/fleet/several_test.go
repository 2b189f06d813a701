package fleet_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

func newFleet(t *testing.T, opts fleet.Options) *fleet.Fleet {
	t.Helper()
	f, err := fleet.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// start runs a fleet for one manager, and returns what ends it.
func start(t *testing.T, f *fleet.Fleet, manager core.Manager, handle core.HandlerFunc) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.Start(ctx, map[core.Manager]core.Handler{manager: handle}) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

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
		if !errors.Is(err, fleet.ErrManagerTaken) {
			t.Errorf("a manager with two handlers: %v, want %v", err, fleet.ErrManagerTaken)
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
		defer start(t, f, "hangs", func(ctx context.Context, _ core.Delivery) error {
			<-ctx.Done()
			return ctx.Err()
		})()
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

func TestReplicasThatReturnLeadToOneResync(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1))
		r.observe(resync("f", 1), beat("f", 1, 1))
		time.Sleep(5 * interval)
		r.wantState(fleet.Stale, "")
		r.observe(beat("e", 2, 1))
		time.Sleep(interval)
		r.observe(beat("f", 2, 1))
		for n := range uint64(5) {
			time.Sleep(interval)
			r.observe(beat("e", n+3, 1))
			r.observe(beat("f", n+3, 1))
		}
		r.wantState(fleet.Fresh, "")
		r.wantCauses("returned")
		if n := len(r.fleet.Get(prod, kyma).Replicas); n != 2 {
			t.Errorf("%d replicas are known, want 2", n)
		}
	})
}

// Only one of two replicas comes back. The resync of the return stands for the events of the other. It must not keep
// certificate authorities from being exchanged either.
func TestReplicaThatDoesNotReturnIsCovered(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1), resync("f", 1), beat("f", 1, 1))
		time.Sleep(5 * interval)
		for n := range uint64(5) {
			r.observe(with(beat("e", n+2, 1), func(b *core.Heartbeat) { b.CAFingerprints = []string{"new"} }))
			time.Sleep(interval)
		}
		r.wantCauses("returned", "replica_lost") // The resend, for the writes that the lost one has reviewed.
		if missing := r.fleet.WithoutCA("new"); len(missing) > 0 {
			t.Errorf("%v are said not to trust the new CA, want none", missing)
		}
	})
}

// Nor does one that spoke to a manager which is not served any more, and was killed: its runtime is
// heard by another manager.
func TestFormerManagerSaysNothingOfAuthorities(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		trusting := func(number uint64, fingerprints ...string) message {
			return with(beat("e", number, 0), func(b *core.Heartbeat) { b.CAFingerprints = fingerprints })
		}
		send(r.fleet, "skr", "former", trusting(1, "old"))
		send(r.fleet, "silent", "former", trusting(1, "new"))
		time.Sleep(5 * interval)
		send(r.fleet, "skr", kyma, trusting(1, "old", "new"))
		if diff := cmp.Diff([]core.RuntimeID{"silent"}, r.fleet.WithoutCA("new")); diff != "" {
			t.Errorf("without the new one (-want +got):\n%s", diff)
		}
	})
}

// An agent that is set back to contract v2 is heard, but has no heartbeats.
func TestOlderContractTakesOver(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), with(beat("e", 1, 1), func(b *core.Heartbeat) { b.Leaving = true }))
		r.wantState(fleet.Stale, reasons.Stopped)
		for range 10 {
			r.observe(message{})
			settle()
		}
		r.wantState(fleet.Unknown, "")
		r.wantCauses("returned")
		r.observe(resync("g", 1), beat("g", 1, 1))
		r.wantState(fleet.Fresh, "")
	})
}

// Two processes with one name are a mistake, but no reason to look at their runtime for ever.
func TestInstancesOfOneName(t *testing.T) {
	named := func(event message) message {
		return with(event, func(b *core.Heartbeat) { b.Instance = "agent" })
	}
	inBubble(t, fleet.Options{}, func(r *rig) {
		for n := range uint64(10) {
			r.observe(named(beat("e", n+1, 0)))
			settle()
			r.observe(named(beat("f", n+1, 0)))
			time.Sleep(interval)
		}
		r.wantCauses("new_epoch", "new_epoch", "new_epoch") // The third one is the resend of the second.
	})
}

// A runtime that makes up epochs gets no more than a resync at a time, and does not push out a
// replica that is heard.
func TestInventedEpochs(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		for n := range 1000 {
			r.observe(resync("real", uint64(n+1)), beat("real", uint64(n+1), uint64(n+1)))
			send(r.fleet, "attacker", kyma, changed("epoch-"+strconv.Itoa(n), 1<<63))
			time.Sleep(10 * time.Millisecond)
		}
		for n := range 50 {
			r.observe(changed("invented-"+strconv.Itoa(n), 1), beat("real", uint64(n+1001), 1000))
			time.Sleep(time.Millisecond)
		}
		settle()
		known := r.fleet.Get(prod, kyma).Replicas
		if len(known) > 8 || known[len(known)-1].Epoch == "" {
			t.Errorf("%d replicas are kept, want at most 8", len(known))
		}
		kept := false
		for _, p := range known {
			kept = kept || p.Epoch == "real"
		}
		if !kept {
			t.Error("the replica that is heard was pushed out")
		}
		attacks := 0
		for _, runtime := range r.resyncs {
			if runtime == "attacker" {
				attacks++
			}
		}
		// 10 s, and each takes the jitter, here 1 s, before the next can come.
		if attacks > 12 {
			t.Errorf("1000 invented epochs led to %d resyncs, want one at a time", attacks)
		}
	})
}

func TestHighestNumberIsNoGap(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		const highest = 1<<64 - 1
		r.observe(resync("e", highest))
		r.observe(changed("e", highest))
		settle()
		r.wantCauses()
	})
}

func TestRuntimeThatBeatsSeldomIsNotForgotten(t *testing.T) {
	slow := func(number uint64) message {
		return with(beat("e", number, 1), func(b *core.Heartbeat) { b.Interval = time.Hour })
	}
	inBubble(t, fleet.Options{ForgetAfter: time.Minute}, func(r *rig) {
		r.observe(resync("e", 1), slow(1))
		time.Sleep(59 * time.Minute)
		r.wantState(fleet.Fresh, "")
		r.observe(slow(2))
		settle()
		r.wantCauses()
		time.Sleep(3 * time.Hour)
		r.wantState(fleet.Unknown, "")
	})
}

func TestDropsAreRememberedForAsLongAsAReplicaMayBeSilent(t *testing.T) {
	dropped := func(number uint64) message {
		return with(beat("e", number, 1), func(b *core.Heartbeat) { b.Dropped = map[string]int64{"overflow": 1} })
	}
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1))
		r.observe(dropped(2))
		time.Sleep(interval)
		r.observe(dropped(3))
		r.wantState(fleet.Degraded, reasons.Dropping)
		time.Sleep(interval + time.Second)
		r.observe(dropped(4))
		r.wantState(fleet.Fresh, "")
	})
}

// Observers hear of changes in the order in which they came about, even when one of them causes the
// next.
func TestObserversAreToldInOrder(t *testing.T) {
	var told []fleet.State
	leaving := with(beat("e", 2, 1), func(b *core.Heartbeat) { b.Leaving = true })
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.fleet.OnChange(func(change fleet.Transition) {
			if change.To.State == fleet.Fresh {
				r.observe(leaving)
			}
		})
		r.fleet.OnChange(func(change fleet.Transition) { told = append(told, change.To.State) })
		r.observe(resync("e", 1), beat("e", 1, 1))
		if diff := cmp.Diff([]fleet.State{fleet.Fresh, fleet.Stale}, told); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}

func TestObserverThatPanicsSilencesNobodyForEver(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.fleet.OnChange(func(change fleet.Transition) {
			if change.To.Runtime == "bad" {
				panic("inside")
			}
		})
		func() {
			defer func() { _ = recover() }() // As a listener does.
			send(r.fleet, "bad", kyma, resync("e", 1), beat("e", 1, 1))
		}()
		r.observe(resync("e", 1), beat("e", 1, 1))
		if n := len(r.transitions); n != 2 {
			t.Errorf("%d changes were told, want 2", n)
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

// BenchmarkSummaries measures a scrape of a fleet with 10,000 runtimes.
func BenchmarkSummaries(b *testing.B) {
	f, err := fleet.New(fleet.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for n := range 10_000 {
		send(f, core.RuntimeID(strconv.Itoa(n)), kyma, beat("e", 1, 0))
	}
	b.ReportAllocs()
	for b.Loop() {
		f.Summaries()
	}
}

// The first heartbeats of a new agent may be lost on their way. Until the next one, its events are no return each.
func TestEventsBeforeAHeartbeatLeadToOneResync(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1))
		time.Sleep(5 * interval)
		r.wantState(fleet.Stale, "")
		for n := range uint64(9) {
			r.observe(changed("f", n+9))
			time.Sleep(3 * time.Second)
		}
		r.observe(beat("f", 3, 17))
		r.wantState(fleet.Fresh, "")
		settle()
		r.wantCauses("new_epoch")
	})
}
