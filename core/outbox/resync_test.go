package outbox_test

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

func ownedBy(owner, name string) core.WatchEvent {
	event := named(name)
	event.Owner.Name = owner
	return event
}

func TestResyncReachesEveryManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{Managers: []core.Manager{"configured"}})
		o.Accept("served", named("a"))
		time.Sleep(time.Second)
		o.Resync()
		o.Resync() // Both while the first waits to settle: one of them stands for the other.
		o.Resync()
		time.Sleep(time.Second)
		stop()
		wantCalls(t, p, at(100*ms, "a"), at(1100*ms, "resync"), at(1100*ms, "resync"))
		for manager, want := range map[core.Manager]int64{"configured": 3, "served": 4} {
			if got := o.Counts()[manager]; got.Accepted != want || got.Pending != 0 {
				t.Errorf("counts of %s: %+v, want %d accepted, none pending", manager, got, want)
			}
		}
	})
}

func TestResyncBeforeStartReachesConfiguredManagers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o := newOutbox(t, p, outbox.Options{Managers: []core.Manager{kyma}})
		o.Resync()
		if got := o.Counts()[kyma]; got.Pending != 1 {
			t.Errorf("counts %+v, want one pending", got)
		}
	})
}

func TestResyncAfterTheEndIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, stop := run(t, newPlane(nil), outbox.Options{Managers: []core.Manager{kyma}})
		stop()
		o.Resync()
		checkBalance(t, o)
		if got := o.Counts()[kyma].Dropped["shutdown"]; got != 1 {
			t.Errorf("%d dropped, want 1", got)
		}
	})
}

func TestResyncWithoutKnownOwnerIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{Managers: []core.Manager{kyma}, ResyncOwners: true, Settle: -1})
		time.Sleep(time.Second)
		unseen := core.WatchEvent{Resync: true}
		if got := o.Accept(kyma, unseen); got != core.Dropped || o.Counts()[kyma].Dropped["no_owner"] != 1 {
			t.Errorf("outcome %s, counts %+v, want it dropped as there is no owner", got, o.Counts()[kyma])
		}
		o.Accept(kyma, ownedBy("one", "a"))
		time.Sleep(time.Second)
		if got := o.Accept(kyma, unseen); got != core.Accepted {
			t.Errorf("outcome %s, want it accepted for the owner", got)
		}
		time.Sleep(time.Second)
		stop()
		wantCalls(t, p, at(time.Second, "a"), at(2*time.Second, "resync of one"))
	})
}

func TestResyncsForOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{
			Managers: []core.Manager{kyma}, ResyncFirst: true, ResyncOwners: true, InFlight: 1, Settle: -1,
		})
		for _, owner := range []string{"", "one", "two", "one"} {
			event := ownedBy(owner, "of "+owner)
			if owner == "" {
				event.Owner = types.NamespacedName{}
			}
			o.Accept(kyma, event)
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Second) // The shortest time between two resyncs of an owner.
		o.Resync()
		time.Sleep(time.Second)
		stop()
		wantCalls(t, p,
			at(0, "of "), // No owner is known at the start, nor from this event.
			at(time.Second, "resync of one"), at(time.Second, "of one"),
			at(2*time.Second, "resync of two"), at(2*time.Second, "of two"),
			at(3*time.Second, "of one"),
			at(9*time.Second, "resync of one"), at(9*time.Second, "resync of two"))
	})
}

// A write that the source did not see may be committed seconds later: an API server first waits for
// a webhook that is gone.
func TestResyncIsSentOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{
			Managers: []core.Manager{kyma}, ResyncFirst: true, InFlight: 1, ResendResync: 10 * time.Second,
		})
		time.Sleep(time.Minute)
		o.Resync()
		time.Sleep(5 * time.Second)
		o.Resync() // Its resend is that of the first one, too.
		time.Sleep(time.Minute)
		wantCalls(t, p,
			at(100*ms, "resync"), at(10*time.Second, "resync"),
			at(time.Minute+100*ms, "resync"), at(time.Minute+5*time.Second+100*ms, "resync"),
			at(time.Minute+15*time.Second, "resync"))
		stop()
	})
}

func TestNegativeResendResyncAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		_, stop := run(t, p, outbox.Options{
			Managers: []core.Manager{kyma}, ResyncFirst: true, ResendResync: -1, InFlight: 1,
		})
		time.Sleep(time.Minute)
		wantCalls(t, p, at(100*ms, "resync"))
		stop()
	})
}

// A source asks for a resync before Start, as at the return of a canary. That is the first resync
// then.
func TestResyncBeforeStartIsTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o := newOutbox(t, p, outbox.Options{Managers: []core.Manager{kyma}, ResyncFirst: true, ResendResync: -1})
		o.Resync()
		time.Sleep(time.Minute)
		stop := startOutbox(t, o)
		time.Sleep(time.Minute)
		stop()
		wantCalls(t, p, at(time.Minute, "resync"))
	})
}

// A first event that is a resync itself needs no other one.
func TestFirstEventIsAResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{ResyncFirst: true})
		o.Accept(kyma, core.WatchEvent{Resync: true})
		time.Sleep(time.Minute)
		stop()
		wantCalls(t, p, at(100*ms, "resync"))
	})
}

// A stranger that posts broken reviews without end asks for a resync with each.
func TestResyncsHaveAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{ResendResync: -1})
		for range 100 {
			o.Accept(kyma, core.WatchEvent{Resync: true})
			o.Accept(kyma, named("a"))
			time.Sleep(200 * ms)
		}
		time.Sleep(10 * time.Second)
		stop()
		resyncs := 0
		last := time.Duration(0)
		for _, c := range p.seen() {
			for _, name := range c.Names {
				if name == "resync" {
					resyncs++
					last = c.At
				}
			}
		}
		if resyncs != 5 || last < 20*time.Second {
			t.Errorf("%d resyncs in 20 s, the last at %v, want one in 5 s, and one after the last cause", resyncs, last)
		}
	})
}
