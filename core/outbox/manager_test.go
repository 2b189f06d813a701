package outbox_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// registry is a control plane that serves some managers, and does not know the others.
type registry struct {
	served map[core.Manager]*inbox

	mu    sync.Mutex
	calls map[core.Manager]int
}

func newRegistry(managers ...core.Manager) *registry {
	r := &registry{served: make(map[core.Manager]*inbox), calls: make(map[core.Manager]int)}
	for _, manager := range managers {
		r.served[manager] = &inbox{}
	}
	return r
}

func (r *registry) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	r.mu.Lock()
	r.calls[manager]++
	r.mu.Unlock()
	if in := r.served[manager]; in != nil {
		return in.Forward(ctx, manager, batch)
	}
	return fmt.Errorf("manager %s: %w", manager, core.ErrUnknownManager)
}

// Events of an invented manager fill all keys. The real one gets its share without a loss.
func TestInventedManagerDoesNotTakeAllKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(kyma)
		o, stop := run(t, r, outbox.Options{MaxKeys: 1000, DrainTimeout: -1})
		for i := range 2000 {
			o.Accept("invented", named(fmt.Sprint("object-", i)))
		}
		for i := range 400 {
			if got := o.Accept(kyma, named(fmt.Sprint("object-", i))); got != core.Accepted {
				t.Fatalf("event %d of the real manager: %s, want accepted", i, got)
			}
		}
		o.Accept("invented", named("object-2001")) // It does not get them back.
		time.Sleep(time.Minute)
		wantCounts(t, o, outbox.Counts{Accepted: 400, Delivered: 400})
		if c := o.Counts()["invented"]; c.Dropped["overflow"] != 1401 || c.Pending < 600 || c.Pending > 602 {
			t.Errorf("counts of the invented manager %+v, want 600 pending and its resyncs, and 1401 dropped", c)
		}
		stop()
	})
}

// The resends of a manager with few keys do not give way to one with many.
func TestResendsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(kyma)
		o, stop := run(t, r, outbox.Options{MaxKeys: 10, Resend: []time.Duration{3 * time.Second}, DrainTimeout: -1})
		o.Accept(kyma, named("a"))
		time.Sleep(time.Second)
		for i := range 100 {
			o.Accept("invented", named(fmt.Sprint("object-", i)))
		}
		time.Sleep(time.Minute)
		stop()
		var got []string
		for _, event := range r.served[kyma].events() {
			got = append(got, nameOf(event.WatchEvent))
		}
		if want := []string{"a", "a"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// A hundred invented managers do not silence the real one, also if no manager is configured.
func TestInventedManagersAreEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		r := newRegistry(kyma, "served")
		o, stop := run(t, r, outbox.Options{
			MaxManagers: 102, DrainTimeout: -1, Managers: []core.Manager{"configured"}, Logger: log.logger(),
		})
		o.Accept("served", named("a"))
		o.Accept("configured", named("a")) // The control plane does not know it yet.
		for i := range 100 {
			o.Accept(core.Manager(fmt.Sprint("invented-", i)), named("a"))
		}
		time.Sleep(time.Second) // They are known to be unknown now.
		if got := o.Accept(kyma, named("a")); got != core.Accepted {
			t.Errorf("event of the real manager: %s, want accepted", got)
		}
		time.Sleep(time.Second)
		wantCounts(t, o, outbox.Counts{Accepted: 1, Delivered: 1})
		for i := range 1000 {
			o.Accept(core.Manager(fmt.Sprint("more-", i)), named("a"))
			time.Sleep(time.Second)
			checkBalance(t, o)
		}
		counts := o.Counts()
		for _, manager := range []core.Manager{kyma, "served", "configured"} {
			if _, ok := counts[manager]; !ok {
				t.Errorf("the lane of %s is gone, want it to stay", manager)
			}
		}
		if c := counts[""]; c.Dropped["unknown_manager"] != 1001 || c.Pending != 0 {
			t.Errorf("counts of the others %+v, want 1001 events of unknown managers", c)
		}
		claim := strings.Contains(log.String(), "a resync stands in")
		if n := strings.Count(log.String(), "never knew"); n < 2 || n > 5 || claim {
			t.Errorf("%d lines about evictions in 17 min, want one in 5 min, and none about resyncs:\n%s", n, &log)
		}
		stop()
	})
}

// Where resyncs are for owners, a review that cannot be parsed leaves a manager without an event. A
// hundred invented ones do not silence the real one: nothing is ever sent that finds out.
func TestManagersWithoutEventsAreEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(kyma)
		o, stop := run(t, r, outbox.Options{ResyncOwners: true, ResyncFirst: true})
		for i := range 100 {
			o.Accept(core.Manager(fmt.Sprint("invented-", i)), core.WatchEvent{Resync: true})
		}
		if got := o.Accept(kyma, named("a")); got != core.Accepted {
			t.Errorf("event of the real manager: %s, want accepted", got)
		}
		time.Sleep(time.Second)
		wantCounts(t, o, outbox.Counts{Accepted: 2, Delivered: 2})
		for i := range 1000 {
			o.Accept(core.Manager(fmt.Sprint("more-", i)), core.WatchEvent{Resync: true})
			checkBalance(t, o)
		}
		if _, ok := o.Counts()[kyma]; !ok {
			t.Error("the lane of the real manager is gone, want it to stay")
		}
		stop()
	})
}

// A manager that is unknown for a while, as when its operator is replaced, is not evicted if it was
// reached before.
func TestManagerThatWasReachedIsNotEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(func(_ context.Context, n int, _ core.Batch) error {
			if n == 0 || n > 5 {
				return nil
			}
			return core.ErrUnknownManager
		})
		o, stop := run(t, p, outbox.Options{MaxManagers: 1})
		o.Accept(kyma, named("a"))
		time.Sleep(time.Second)
		o.Accept(kyma, named("b"))
		time.Sleep(time.Second)
		if got := o.Accept("another", named("a")); got != core.Dropped {
			t.Errorf("event of another manager: %s, want dropped", got)
		}
		time.Sleep(time.Minute)
		wantCounts(t, o, outbox.Counts{Accepted: 2, Delivered: 2})
		stop()
	})
}

func TestManagerAfterTheEndHasNoLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, stop := run(t, newPlane(nil), outbox.Options{})
		stop()
		for i := range 1000 {
			o.Accept(core.Manager(fmt.Sprint("late-", i)), named("a"))
		}
		want := map[core.Manager]outbox.Counts{
			"": {Accepted: 1000, Dropped: map[string]int64{"shutdown": 1000}},
		}
		if diff := cmp.Diff(want, o.Counts()); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}
	})
}

// A manager that is not reachable may be a real one: it is not evicted. That is logged.
func TestUnreachableManagersAreNotEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		p := newPlane(failTimes(1<<30, errDown))
		o, stop := run(t, p, outbox.Options{MaxManagers: 1, DrainTimeout: -1, Logger: log.logger()})
		o.Accept(kyma, named("a"))
		time.Sleep(time.Second)
		for range 10 {
			if got := o.Accept("another", named("a")); got != core.Dropped {
				t.Errorf("event of another manager: %s, want dropped", got)
			}
		}
		synctest.Wait()
		if n := strings.Count(log.String(), "dropped without a resync"); n != 1 {
			t.Errorf("%d lines, want 1:\n%s", n, &log)
		}
		if c := o.Counts()[""]; c.Dropped["too_many_managers"] != 10 {
			t.Errorf("counts of the others %+v, want 10 dropped", c)
		}
		stop()
	})
}

// An evicted lane ends its goroutine, and its events are not sent any more.
func TestEvictedLaneEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry()
		o, stop := run(t, r, outbox.Options{MaxManagers: 1, DrainTimeout: -1, Epoch: "e", ResyncFirst: true})
		before := runtime.NumGoroutine()
		for i := range 500 {
			o.Accept(core.Manager(fmt.Sprint("invented-", i)), named("a"))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if after := runtime.NumGoroutine(); after > before+5 {
			t.Errorf("%d goroutines after 500 managers, want about %d", after, before)
		}
		r.mu.Lock()
		calls := r.calls["invented-0"]
		r.mu.Unlock()
		time.Sleep(time.Hour)
		r.mu.Lock()
		if again := r.calls["invented-0"]; again != calls {
			t.Errorf("%d calls for an evicted manager, want %d", again, calls)
		}
		r.mu.Unlock()
		stop()
	})
}

// The numbers of a lane begin anew after its eviction. Its IDs must not, as an answer may have been
// lost.
func TestSecondLaneOfAManagerHasIDsOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := make(map[string]bool)
		p := newPlane(func(_ context.Context, _ int, batch core.Batch) error {
			if len(batch.Events) > 0 {
				ids[batch.Events[0].ID] = true
			}
			return core.ErrUnknownManager
		})
		o, stop := run(t, p, outbox.Options{MaxManagers: 1, DrainTimeout: -1, Epoch: "e", Settle: -1})
		for _, manager := range []core.Manager{"one", "two", "one"} {
			o.Accept(manager, named("a"))
			time.Sleep(time.Minute)
		}
		stop()
		if len(ids) != 3 {
			t.Errorf("IDs %v, want 3", ids)
		}
	})
}

// A gateway may acknowledge the events of invented managers. They give way when they are idle, the oldest first.
func TestIdleManagersGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, stop := run(t, &inbox{}, outbox.Options{
			MaxManagers: 10, DrainTimeout: -1, Managers: []core.Manager{"configured"}, Resend: []time.Duration{},
		})
		for i := range 150 {
			o.Accept(core.Manager(fmt.Sprint("invented-", i)), named("a"))
			time.Sleep(time.Second)
			checkBalance(t, o)
		}
		if got := o.Accept(kyma, named("a")); got != core.Accepted {
			t.Errorf("event of the real manager: %s, want accepted", got)
		}
		time.Sleep(time.Second)
		counts := o.Counts()
		for manager, want := range map[core.Manager]bool{
			kyma: true, "configured": true, "invented-149": true, "invented-141": false,
		} {
			if _, has := counts[manager]; has != want {
				t.Errorf("%s has a lane: %t, want %t", manager, has, want)
			}
		}
		stop()
	})
}
