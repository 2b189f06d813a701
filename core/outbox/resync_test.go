package outbox_test

import (
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

func TestResyncReachesEveryManager(t *testing.T) {
	inBubble(t, scene{opts: outbox.Options{Managers: []core.Manager{"configured"}}}, func(w *world) {
		w.Accept("served", named("a"))
		time.Sleep(second)
		for range 3 { // While the first waits to settle, one of the others stands for both.
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
