package outbox_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// resends are options with one resend, of events and of resyncs.
func resends(after time.Duration) outbox.Options {
	return outbox.Options{Resend: []time.Duration{after}, ResendResync: after}
}

// Events of two owners of an object do not merge: the former owner may not have read it yet. The
// last resend is for the last owner that a review has named.
func TestLastResendIsForTheLastOwner(t *testing.T) {
	inBubble(t, scene{opts: resends(3 * second)}, func(w *world) {
		for _, owner := range []string{"former", "last"} {
			w.Accept(kyma, ownedBy(owner, "a"))
			time.Sleep(second)
		}

		time.Sleep(time.Minute)
		var got []string
		for _, event := range w.events() {
			got = append(got, event.Owner.Name)
		}

		if want := []string{"former", "last", "former", "last"}; !slices.Equal(got, want) {
			t.Errorf("got events for the owners %q, want %q", got, want)
		}
	})
}

// A resend counts for MaxKeys, but gives way to a new key of any manager.
func TestResendsMakeRoom(t *testing.T) {
	opts := resends(3 * second)
	other := &plane{}
	opts.MaxKeys = 1
	inBubble(t, scene{opts: opts, via: func(p *plane) core.Forwarder {
		return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			if manager != kyma {
				return other.Forward(ctx, manager, batch)
			}
			return p.Forward(ctx, manager, batch)
		})
	}}, func(w *world) {
		w.write("a")
		time.Sleep(second)
		w.wantOutcome("other", named("b"), core.Accepted) // Only a resend has to make room.
		w.wantOutcome("other", named("c"), core.Dropped)  // Events do not make room.

		time.Sleep(time.Minute)
		// The resync for the resend of a is as late as that. The resync for c is resent, as c would
		// have been.
		w.wantCalls(at(100*ms, "a"), at(4*second, "resync"))
		w.wantDelivered(2)
		w.wantBetween(4, len(other.seen()), 4, "calls for the other manager")
	})
}

// A resync that replaces resends is neither delayed by those that follow nor sent for each of
// them.
func TestOverflowOfResends(t *testing.T) {
	opts := outbox.Options{MaxKeys: 1, Resend: []time.Duration{second}}
	inBubble(t, scene{opts: opts}, func(w *world) {
		w.writeMany(50, "", 190*ms)
		time.Sleep(time.Minute)
		w.wantOutcome(kyma, named("there is room again"), core.Accepted)

		w.stop()
		if counts := w.Counts()[kyma]; len(counts.Dropped) > 0 {
			t.Errorf("counts %+v, want nothing dropped", counts)
		}

		var resyncs []time.Duration
		for _, call := range w.seen() {
			if strings.HasPrefix(call.Names[0], "resync") {
				resyncs = append(resyncs, call.At)
			}
		}

		// The last resend that made room did so after 49 * 190 ms.
		if n := len(resyncs); n > 12 || resyncs[n-1] != 10310*ms {
			t.Fatalf("%d resyncs at %v, want about one a second, the last one at 10.31 s", n, resyncs)
		}

		for i, at := range resyncs[1:] {
			if pause := at - resyncs[i]; pause > second {
				t.Errorf("%v between two resyncs, want a second at most", pause)
			}
		}
	})
}

// A pod chooses the owners of its events: resyncs of owners are bounded although they come one
// after the other.
func TestOwnersDoNotUnboundTheResends(t *testing.T) {
	opts := outbox.Options{MaxKeys: 1, Resend: []time.Duration{time.Minute}, ResyncOwners: true}
	inBubble(t, scene{opts: opts}, func(w *world) {
		for i := range 2 * 100 {
			w.Accept(kyma, ownedBy(numbered("", i), "a"))
			time.Sleep(190 * ms)
		}

		time.Sleep(time.Hour)
		owners := make(map[string]bool)
		for _, call := range w.seen() {
			if strings.HasPrefix(call.Names[0], "resync of ") {
				owners[call.Names[0]] = true
			}
		}

		w.wantBetween(100, len(owners), 100, "owners had a resync")
	})
}

// An event also replaces the resends of the events that it replaces.
func TestMergedEventSaysWhatAllWritesNeed(t *testing.T) {
	at := func(uid types.UID, base int64) core.WatchEvent {
		e := named("a")
		e.UID = uid
		e.Base = base
		return e
	}
	for name, tt := range map[string]struct {
		pause  time.Duration // between two events
		events []core.WatchEvent
		want   core.WatchEvent
	}{
		"while the first waits":         {0, []core.WatchEvent{at("u", 7), at("u", 6), at("u", 5)}, at("u", 7)},
		"while the first is resent":     {second, []core.WatchEvent{at("u", 7), at("u", 6)}, at("u", 7)},
		"newer writes":                  {second, []core.WatchEvent{at("u", 6), at("u", 7), at("u", 8)}, at("u", 8)},
		"another object":                {second, []core.WatchEvent{at("u", 7), at("v", 8)}, at("", 0)},
		"unknown between":               {second, []core.WatchEvent{at("u", 7), at("", 0), at("u", 8)}, at("", 0)},
		"after the resends of the last": {time.Minute, []core.WatchEvent{at("v", 9), at("u", 8)}, at("u", 8)},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, scene{plain: true}, func(w *world) {
				for _, event := range tt.events {
					w.Accept(kyma, event)
					time.Sleep(tt.pause)
				}

				time.Sleep(time.Hour)
				if events := w.events(); events[len(events)-1].WatchEvent != tt.want {
					t.Errorf("the last event is %+v, want %+v", events[len(events)-1].WatchEvent, tt.want)
				}
			})
		})
	}
}

// A resync is for configured managers and for those that have had an event.
func TestResyncReachesEveryManager(t *testing.T) {
	inBubble(t, scene{opts: outbox.Options{Managers: []core.Manager{"configured"}}}, func(w *world) {
		w.Accept("served", named("a"))
		time.Sleep(second)
		for range 3 { // While the first waits to settle, one of the others replaces both.
			w.Resync()
		}

		time.Sleep(second)
		w.wantCalls(at(100*ms, "a"), at(1100*ms, "resync"), at(1100*ms, "resync"))
		for manager, want := range map[core.Manager]int64{"configured": 3, "served": 4} {
			if got := w.Counts()[manager]; got.Accepted != want || got.Pending != 0 {
				t.Errorf("counts of %s: %+v, want %d accepted, none pending", manager, got, want)
			}
		}
	})
}

// A stranger that posts broken reviews without end asks for a resync with each.
func TestResyncsHaveAPace(t *testing.T) {
	inBubble(t, scene{}, func(w *world) {
		for range 100 {
			w.Accept(kyma, core.WatchEvent{Resync: true})
			w.write("a")
			time.Sleep(200 * ms)
		}

		time.Sleep(10 * second)
		var last time.Duration
		for _, c := range w.seen() {
			if c.Names[0] == "resync" {
				last = c.At
			}
		}

		w.wantBetween(5, w.count("resync"), 5, "resyncs in 20 s, one in 5 s")
		if last < 20*second {
			t.Errorf("the last resync came at %v, want one after the last cause", last)
		}
	})
}

// A pod names many owners that the control plane refuses, and then fills the outbox while the
// control plane is away. A change of an owner that was taken before finds no room, and its resync
// does.
func TestForgedOwnersLeaveRoomForOneThatWasTaken(t *testing.T) {
	t.Parallel()
	for _, forged := range []int{0, 100} { // The first is the control.
		const keys = 300
		opts := outbox.Options{MaxKeys: keys, ResyncOwners: true}
		inBubble(t, scene{opts: opts, answer: refuseOwnersBut("real")}, func(w *world) {
			for i := range forged {
				w.Accept(kyma, ownedBy(numbered("forged-", i), "a"))
			}

			time.Sleep(time.Minute)
			w.Accept(kyma, ownedBy("real", "a"))
			time.Sleep(time.Minute)
			w.setDown(true)

			for i := range keys {
				w.Accept(kyma, ownedBy("another", numbered("b", i)))
			}

			for i := range forged {
				w.Accept(kyma, ownedBy(numbered("forged-", i), "c"))
			}

			w.Accept(kyma, ownedBy("real", "lost"))
			time.Sleep(time.Minute)
			w.setDown(false)
			time.Sleep(time.Hour)
			if w.count("lost") > 0 {
				w.t.Error("the outbox has room for the change")
			}

			if w.count("resync of real") == 0 {
				w.t.Errorf("with %d forged owners, no resync replaces the change that had no room", forged)
			}
		})
	}
}

// An operator reconciles an owner of contract v1 once after the start of the agent, because changes
// before it are unknown. Invented owners take the places of all owners that no event was taken of,
// and not that resync.
func TestForgedOwnersDoNotTakeTheFirstResync(t *testing.T) {
	t.Parallel()
	for _, forged := range []int{0, 100, 1000} { // The first is the control.
		opts := outbox.Options{ResyncOwners: true, ResyncFirst: true}
		inBubble(t, scene{opts: opts, answer: refuseOwnersBut("real")}, func(w *world) {
			for i := range forged {
				w.Accept(kyma, ownedBy(numbered("forged-", i), "a"))
			}

			time.Sleep(second)
			for range 3 {
				w.Accept(kyma, ownedBy("real", "a"))
				time.Sleep(time.Minute)
			}

			if n := w.count("resync of real"); n != 1 {
				w.t.Errorf("with %d forged owners, %d resyncs of the owner, want one", forged, n)
			}
			checkBalance(w.t, w.Outbox)
		})
	}
}

// The resyncs of owners that gave way still wait. An owner that has no room beside them gets its
// resync later.
func TestResyncsOfFormerOwnersDoNotTakeTheFirstResync(t *testing.T) {
	opts := outbox.Options{ResyncOwners: true, ResyncFirst: true, ResendResync: time.Hour}
	const forged, taken, gone = 100, 50, 10
	var isPermanent atomic.Bool
	answer := func(_ context.Context, _ int, batch core.Batch) error {
		failed := make(core.EventErrors)
		for i := range batch.Events {
			owner := batch.Events[i].Owner.Name
			number, isForged := strings.CutPrefix(owner, "forged-")
			switch {
			case isForged && isPermanent.Load() && len(number) == 1:
				failed[i] = errRefused
			case isForged:
				failed[i] = errNoOwner
			}
		}

		if len(failed) == 0 {
			return nil
		}
		return failed
	}

	inBubble(t, scene{opts: opts, plain: true, answer: answer}, func(w *world) {
		for i := range forged {
			w.Accept(kyma, ownedBy(numbered("forged-", i), "a"))
		}

		for i := range taken {
			w.Accept(kyma, ownedBy(numbered("taken-", i), "a"))
		}

		time.Sleep(time.Minute)
		isPermanent.Store(true)
		time.Sleep(10 * time.Minute)

		for range 3 {
			w.Accept(kyma, ownedBy("real", "a"))
			time.Sleep(time.Minute)
		}

		if w.count("resync of real") == 0 {
			t.Errorf("%d owners without resync have given way, and the next owner gets none", gone)
		}
		checkBalance(t, w.Outbox)
	})
}

// refuseOwnersBut answers as SAN pinning does: the events of all other owners are refused.
func refuseOwnersBut(owner string) answer {
	return func(_ context.Context, _ int, batch core.Batch) error {
		failed := make(core.EventErrors)
		for i := range batch.Events {
			if batch.Events[i].Owner.Name != owner {
				failed[i] = errNoOwner
			}
		}

		if len(failed) == 0 {
			return nil
		}
		return failed
	}
}
