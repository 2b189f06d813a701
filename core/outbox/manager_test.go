package outbox_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// serving returns a control plane that knows some managers only.
func serving(managers ...core.Manager) func(p *plane) core.Forwarder {
	return func(p *plane) core.Forwarder {
		return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			if slices.Contains(managers, manager) {
				return p.Forward(ctx, manager, batch)
			}
			return fmt.Errorf("manager %s: %w", manager, core.ErrUnknownManager)
		})
	}
}

// inventMany accepts an event for each of n managers, with a pause after each.
func (w *world) inventMany(n int, prefix string, pause time.Duration, event core.WatchEvent) {
	w.t.Helper()
	for i := range n {
		w.Accept(core.Manager(numbered(prefix, i)), event)
		time.Sleep(pause)
		checkBalance(w.t, w.Outbox)
	}
}

// wantLanes wants that managers have a lane, or none.
func (w *world) wantLanes(want bool, managers ...core.Manager) {
	w.t.Helper()
	counts := w.Counts()
	for _, manager := range managers {
		if _, has := counts[manager]; has != want {
			w.t.Errorf("%s has a lane: %t, want %t", manager, has, want)
		}
	}
}

// Events of an invented manager fill all keys. The real one gets its share without a loss.
func TestInventedManagerDoesNotTakeAllKeys(t *testing.T) {
	inBubble(t, scene{opts: outbox.Options{MaxKeys: 1000, DrainTimeout: -1}, via: serving(kyma)}, func(w *world) {
		for i := range 2000 {
			w.Accept("invented", named(numbered("object-", i)))
		}

		for i := range 400 {
			w.wantOutcome(kyma, named(numbered("object-", i)), core.Accepted)
		}

		w.Accept("invented", named("object-2001")) // It does not get them back.
		time.Sleep(time.Minute)
		w.wantDelivered(400)
		if c := w.Counts()["invented"]; c.Dropped["overflow"] != 1401 || c.Pending < 600 || c.Pending > 602 {
			t.Errorf("counts of the invented manager %+v, want 600 pending and its resyncs, and 1401 dropped", c)
		}
	})
}

// The resends of a manager with few keys do not give way to one with many.
func TestResendsAreShared(t *testing.T) {
	opts := outbox.Options{MaxKeys: 10, Resend: []time.Duration{3 * second}, DrainTimeout: -1}
	inBubble(t, scene{opts: opts, via: serving(kyma)}, func(w *world) {
		w.write("a")
		time.Sleep(second)
		for i := range 100 {
			w.Accept("invented", named(numbered("object-", i)))
		}

		time.Sleep(time.Minute)
		w.wantCalls(at(100*ms, "a"), at(3*second, "a"))
	})
}

// A hundred invented managers do not silence the real one, also if no manager is configured.
func TestInventedManagersAreEvicted(t *testing.T) {
	opts := outbox.Options{MaxManagers: 102, DrainTimeout: -1, Managers: []core.Manager{"configured"}}
	inBubble(t, scene{opts: opts, via: serving(kyma, "served")}, func(w *world) {
		w.Accept("served", named("a"))
		w.Accept("configured", named("a")) // The control plane does not know it yet.
		w.inventMany(100, "invented-", 0, named("a"))
		time.Sleep(second) // They are known to be unknown now.
		w.wantOutcome(kyma, named("a"), core.Accepted)

		time.Sleep(second)
		w.wantDelivered(1)
		w.inventMany(1000, "more-", second, named("a"))
		w.wantLanes(true, kyma, "served", "configured")
		if c := w.Counts()[""]; c.Dropped["unknown_manager"] != 1001 || c.Pending != 0 {
			t.Errorf("counts of the others %+v, want 1001 events of unknown managers", c)
		}

		w.wantBetween(2, w.log.count("never acknowledged"), 5, "lines about evictions in 17 min, one in 5 min")
		w.wantBetween(0, w.log.count("a resync replaces"), 0, "lines about resyncs")
	})
}

// Where resyncs are for owners, a review that cannot be parsed leaves a manager without an event. A
// hundred invented ones do not silence the real one: nothing is ever sent that finds out.
func TestManagersWithoutEventsAreEvicted(t *testing.T) {
	opts := outbox.Options{ResyncOwners: true, ResyncFirst: true}
	inBubble(t, scene{opts: opts, via: serving(kyma)}, func(w *world) {
		w.inventMany(100, "invented-", 0, core.WatchEvent{Resync: true})
		w.wantOutcome(kyma, named("a"), core.Accepted)
		time.Sleep(second)
		w.wantDelivered(2)

		w.inventMany(1000, "more-", 0, core.WatchEvent{Resync: true})
		w.wantLanes(true, kyma)
	})
}

// A manager that is unknown for a while, as when its operator is replaced, is not evicted if it was
// reached before.
func TestManagerThatWasReachedIsNotEvicted(t *testing.T) {
	inBubble(t, scene{
		opts: outbox.Options{MaxManagers: 1},
		answer: func(_ context.Context, n int, _ core.Batch) error {
			if n == 0 || n > 5 {
				return nil
			}
			return core.ErrUnknownManager
		},
	}, func(w *world) {
		w.writeMany(2, "", second)
		w.wantOutcome("another", named("a"), core.Dropped)
		time.Sleep(time.Minute)
		w.wantDelivered(2)
	})
}

func TestManagerAfterTheEndHasNoLane(t *testing.T) {
	inBubble(t, scene{}, func(w *world) {
		w.stop()
		w.inventMany(1000, "late-", 0, named("a"))
		want := map[core.Manager]outbox.Counts{
			"": {Accepted: 1000, Dropped: map[core.Reason]int64{"shutdown": 1000}},
		}
		if diff := cmp.Diff(want, w.Counts()); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}
	})
}

// A manager that is not reachable may be a real one: it is not evicted. That is logged.
func TestUnreachableManagersAreNotEvicted(t *testing.T) {
	inBubble(t, scene{opts: outbox.Options{MaxManagers: 1, DrainTimeout: -1}, answer: always(errDown)}, func(w *world) {
		w.write("a")
		time.Sleep(second)
		for range 10 {
			w.wantOutcome("another", named("a"), core.Dropped)
		}

		synctest.Wait()
		w.wantBetween(1, w.log.count("a further manager without a resync"), 1, "lines")
		if c := w.Counts()[""]; c.Dropped["too_many_managers"] != 10 {
			t.Errorf("counts of the others %+v, want 10 dropped", c)
		}
	})
}

// An evicted lane ends its goroutine, and its events are not sent any more.
func TestEvictedLaneEnds(t *testing.T) {
	opts := outbox.Options{MaxManagers: 1, DrainTimeout: -1, Epoch: "e", ResyncFirst: true}
	calls := 0 // for the first manager
	inBubble(t, scene{opts: opts, via: func(*plane) core.Forwarder {
		return core.ForwarderFunc(func(_ context.Context, manager core.Manager, _ core.Batch) error {
			if manager == "invented-0" {
				calls++
			}
			return core.ErrUnknownManager
		})
	}}, func(w *world) {
		before := runtime.NumGoroutine()
		w.inventMany(500, "invented-", second, named("a"))
		synctest.Wait()
		w.wantBetween(0, runtime.NumGoroutine(), before+5, "goroutines after 500 managers")

		had := calls
		time.Sleep(time.Hour)
		synctest.Wait()
		w.wantBetween(had, calls, had, "calls for an evicted manager")
	})
}

// The numbers of a lane begin anew after its eviction. Its IDs must not, as an answer may have been
// lost.
func TestSecondLaneOfAManagerHasIDsOfItsOwn(t *testing.T) {
	ids := make(map[string]bool)
	inBubble(t, scene{
		opts: outbox.Options{MaxManagers: 1, DrainTimeout: -1, Epoch: "e", Settle: -1},
		answer: func(_ context.Context, _ int, batch core.Batch) error {
			if len(batch.Events) > 0 {
				ids[batch.Events[0].ID] = true
			}
			return core.ErrUnknownManager
		},
	}, func(w *world) {
		for _, manager := range []core.Manager{"one", "two", "one"} {
			w.Accept(manager, named("a"))
			time.Sleep(time.Minute)
		}

		w.stop()
		w.wantBetween(3, len(ids), 3, "IDs")
	})
}

// A gateway may acknowledge the events of invented managers. They give way when they are idle, the
// oldest first.
func TestIdleManagersGiveWay(t *testing.T) {
	opts := outbox.Options{MaxManagers: 10, DrainTimeout: -1, Managers: []core.Manager{"configured"}}
	inBubble(t, scene{opts: opts}, func(w *world) {
		w.inventMany(150, "invented-", second, named("a"))
		w.wantOutcome(kyma, named("a"), core.Accepted)
		time.Sleep(second)
		w.wantLanes(true, kyma, "configured", "invented-149")
		w.wantLanes(false, "invented-141")
	})
}
