package outbox_test

import (
	"testing"
	"testing/synctest"
	"time"

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
