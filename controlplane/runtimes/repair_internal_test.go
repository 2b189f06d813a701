package runtimes

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// repairWorld is a reconciler that follows a fleet, in a bubble. The runtime prod is ready for a long
// time, and sends heartbeats for two managers.
type repairWorld struct {
	*reconciler

	t     *testing.T
	fleet *fleet.Fleet
	queue testQueue
	beats uint64
}

func inRepairWorld(t *testing.T, run func(w *repairWorld)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &repairWorld{t: t, fleet: newTestFleet(t).Fleet, reconciler: newReconciler(t, newPlane(t), nil)}
		w.opts.Fleet = w.fleet
		w.queue = newQueue(t, w.lanes.Regular)
		w.followFleet()
		w.ready(prod)
		w.beat("a", alive)
		w.beat("b", alive)
		time.Sleep(time.Hour)
		w.wantLooks(0)
		run(w)
	})
}

func (w *repairWorld) ready(id core.RuntimeID) {
	w.serves(client.ObjectKey{Name: string(id)}, id, "a", "b")
}

func (w *repairWorld) serves(object client.ObjectKey, id core.RuntimeID, managers ...core.Manager) {
	w.book.noteStatus(object, id, installation.Status{State: installation.Ready}, contents{managers: managers})
}

// start lets the fleet find silent runtimes.
func (w *repairWorld) start() {
	go func() { _ = w.fleet.Receiver().Start(w.t.Context(), nil) }()
}

func (w *repairWorld) beat(manager core.Manager, beat core.Heartbeat) {
	w.beats++
	beat.Interval = 30 * time.Second
	beat.Number = w.beats
	w.fleet.Receiver().Observe(core.Peer{ID: prod}, manager, core.Batch{Epoch: "e", Heartbeat: &beat}, nil)
}

// wantLooks wants so many requests in the queue, and removes them.
func (w *repairWorld) wantLooks(want int) {
	w.t.Helper()

	synctest.Wait()
	if have := w.queue.Len(); have != want {
		w.t.Errorf("%d looks, want %d", have, want)
	}

	for w.queue.Len() > 0 {
		request, priority, _ := w.queue.GetWithPriority()
		if request.Name != string(prod) || priority != handler.LowPriority {
			w.t.Errorf("look at %s with the priority %d", request.Name, priority)
		}

		w.queue.Done(request)
	}
}

// drain removes all requests.
func (w *repairWorld) drain() {
	for synctest.Wait(); w.queue.Len() > 0; {
		request, _ := w.queue.Get()
		w.queue.Done(request)
	}
}

func (w *repairWorld) wantVerified(want bool) {
	w.t.Helper()
	if have := w.book.takeRepair(prodKey); have != want {
		w.t.Errorf("all objects are applied: %t, want %t", have, want)
	}
}

var (
	lost  = core.Heartbeat{Canary: core.CanaryLost}
	alive = core.Heartbeat{Canary: core.CanaryAlive}
)

func TestABrokenWatchPathIsLookedAtOnce(t *testing.T) {
	inRepairWorld(t, func(w *repairWorld) {
		// One agent sends to both managers, so both report the same.
		w.beat("a", lost)
		w.wantLooks(1)

		// What happens to another manager before the look does not end it.
		w.beat("b", core.Heartbeat{Canary: core.CanaryAlive, OldestPending: time.Hour})
		w.wantVerified(true)
		w.beat("b", lost)

		for range 100 {
			time.Sleep(30 * time.Second)
			w.beat("a", lost)
			w.beat("b", lost)
		}

		w.wantLooks(0)
		w.wantVerified(false)

		// Another condition is another change.
		w.beat("a", core.Heartbeat{Canary: core.CanaryFailing})
		w.wantLooks(1)
		w.wantVerified(true)

		// A webhook was removed beside a living canary.
		time.Sleep(w.repairPause())
		w.beat("a", core.Heartbeat{Canary: core.CanaryAlive, WebhookError: "one is missing"})
		w.wantLooks(1)
		w.wantVerified(true)
	})
}

func TestASilentRuntimeIsLookedAt(t *testing.T) {
	inRepairWorld(t, func(w *repairWorld) {
		w.start()
		w.beat("a", alive)
		w.beat("b", alive)
		time.Sleep(time.Minute + 2*time.Second)
		w.wantLooks(1)

		// Its heartbeats come again before the look.
		w.beat("a", alive)
		w.beat("b", alive)
		w.wantVerified(false)
	})
}

// Neither load nor another control plane is repaired in a runtime.
func TestOtherConditionsAreNotLookedAt(t *testing.T) {
	inRepairWorld(t, func(w *repairWorld) {
		w.beat("a", core.Heartbeat{Canary: core.CanaryAlive, OldestPending: time.Hour})
		for n := range uint64(9) {
			w.beat("a", core.Heartbeat{Canary: core.CanaryAlive, Sequence: 2*n + 2})
		}

		if s := w.fleet.Get(prod, "a"); s.Reason != fleet.ReasonSharedByReplicas {
			t.Errorf("reason %q, want %q", s.Reason, fleet.ReasonSharedByReplicas)
		}

		w.beat("by hand", lost)
		w.fleet.Receiver().Observe(core.Peer{ID: "unknown"}, "a", core.Batch{Epoch: "e", Heartbeat: &lost}, nil)
		w.wantLooks(0)
		w.wantVerified(false)
	})
}

// A runtime chooses its heartbeats, and how long its API server takes for an answer.
func TestARuntimeThatFlapsTakesATenthOfAWorker(t *testing.T) {
	for name, beats := range map[string][]core.Heartbeat{"lost in the end": {alive, lost}, "alive in the end": {lost, alive}} {
		t.Run(name, func(t *testing.T) {
			inRepairWorld(t, func(w *repairWorld) { w.testFlapping(beats) })
		})
	}
}

func (w *repairWorld) testFlapping(beats []core.Heartbeat) {
	w.t.Helper()

	const took = 50 * time.Second
	looks := 0
	for begun := time.Now(); time.Since(begun) < time.Hour; {
		for _, beat := range beats {
			w.beat("a", beat)
		}

		synctest.Wait()
		if w.queue.Len() == 0 {
			time.Sleep(time.Second)
			continue
		}

		looks++
		request, _ := w.queue.Get()
		least := time.Duration(0)
		if w.book.takeRepair(prodKey) {
			least = w.repairPause()
		}

		time.Sleep(took)
		w.book.endRepair(prodKey, took, least)
		w.queue.Done(request)
	}

	if want := int(time.Hour / (10 * took)); looks < 2 || looks > want+1 {
		w.t.Errorf("%d early looks, want at most %d", looks, want)
	}
}

// Its looks end before they come to the runtime, as with an object that opts out.
func TestARuntimeThatIsNotReachedIsLookedAtOnceAMinute(t *testing.T) {
	inRepairWorld(t, func(w *repairWorld) {
		looks := 0
		for begun := time.Now(); time.Since(begun) < time.Hour; time.Sleep(time.Second) {
			w.beat("a", alive)
			w.beat("a", lost)
			synctest.Wait()
			if w.queue.Len() > 0 {
				looks++
				request, _ := w.queue.Get()
				w.queue.Done(request)
			}
		}

		if looks < 30 || looks > 61 {
			t.Errorf("%d looks within an hour, want about 60", looks)
		}
	})
}

func TestAForgottenRuntimeIsNotLookedAt(t *testing.T) {
	inRepairWorld(t, func(w *repairWorld) {
		w.book.forgetObject(client.ObjectKey{Name: "another object"})
		w.beat("a", lost)
		w.wantLooks(1)
		w.book.forgetObject(prodKey)
		w.beat("a", alive)
		time.Sleep(time.Hour)
		w.beat("a", lost)
		w.wantLooks(0)
		w.wantVerified(false)
	})
}

// The label with the runtime ID of an object was corrected.
func TestAFormerIDOfAnObjectIsForgotten(t *testing.T) {
	inRepairWorld(t, func(w *repairWorld) {
		w.serves(prodKey, "corrected", "a")
		w.beat("a", lost)
		w.wantLooks(0)
		w.book.forgetObject(prodKey)

		if n := len(w.book.objects) + len(w.book.runtimes); n != 0 {
			t.Errorf("%d entries, want none", n)
		}
	})
}

func TestARuntimeThatFailsIsLeftToItsLane(t *testing.T) {
	inRepairWorld(t, func(w *repairWorld) {
		w.book.withEntry(prodKey, func(e *entry) { e.fails = true })
		w.beat("a", lost)
		w.wantLooks(0)
		w.wantVerified(true)
	})
}

// A gateway was away, so that all runtimes are stale at once. Looks at them could end nothing.
func TestAStaleFleetIsNotLookedAt(t *testing.T) {
	inRepairWorld(t, func(w *repairWorld) {
		const many = 1000
		newcomer := reconcile.Request{NamespacedName: client.ObjectKey{Name: "new"}}
		beat := func(n int) {
			id := core.RuntimeID(fmt.Sprintf("runtime-%d", n))
			w.beats++
			w.fleet.Receiver().Observe(core.Peer{ID: id}, "a",
				core.Batch{Epoch: "e", Heartbeat: &core.Heartbeat{Canary: core.CanaryAlive, Number: w.beats, Interval: 30 * time.Second}}, nil)
		}

		for n := range many {
			w.ready(core.RuntimeID(fmt.Sprintf("runtime-%d", n)))
			beat(n)
		}

		w.start()
		time.Sleep(time.Hour)
		w.queue.Add(newcomer)
		synctest.Wait()

		// At first, nothing shows that there will be more. The runtime prod is among them.
		first, _ := w.queue.Get()
		if have := w.queue.Len(); first != newcomer || have < 20 || have > many/10+1 {
			t.Errorf("first is %v, before %d others", first, have)
		}
		if have := len(w.book.stale); have != many+1 {
			t.Errorf("%d runtimes are stale, want all", have)
		}

		// All but one come back.
		w.queue.Done(first)
		w.drain()
		for n := range many {
			beat(n)
		}

		synctest.Wait()
		if have := len(w.book.stale); have != 1 {
			t.Errorf("%d runtimes are stale, want prod", have)
		}

		w.beat("a", alive)
		w.beat("b", alive)
		w.drain()
		w.beat("a", lost)
		w.wantLooks(1)
	})
}

// Managers that no Watcher names any more are stale until the fleet forgets them.
func TestAFormerManagerIsNotBroken(t *testing.T) {
	inRepairWorld(t, func(w *repairWorld) {
		w.beat("a", lost)
		w.wantLooks(1)
		w.wantVerified(true)
		w.serves(prodKey, prod, "b")
		time.Sleep(time.Minute)
		w.beat("b", lost)
		w.wantLooks(1)
	})
}
