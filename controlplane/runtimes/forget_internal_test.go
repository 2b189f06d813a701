package runtimes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

const prod core.RuntimeID = "prod"

var prodKey = client.ObjectKey{Name: string(prod)}

// testFleet is a fleet that gets heartbeats of one runtime.
type testFleet struct {
	*fleet.Fleet

	t *testing.T
}

func newTestFleet(t *testing.T) testFleet {
	t.Helper()

	f, err := fleet.New(fleet.Options{})
	check(t, err)
	return testFleet{f, t}
}

// inTestFleet runs a test with virtual time. The agents of prod are ready.
func inTestFleet(t *testing.T, run func(f testFleet, r *reconciler)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t)
		r := &reconciler{opts: Options{Fleet: f.Fleet}.withDefaults(), book: (&Overview{}).newBook()}
		r.book.addObject(prodKey, prod)
		run(f, r)
	})
}

func (h testFleet) beat(epoch string, managers ...core.Manager) {
	for _, manager := range managers {
		h.Receiver().Observe(core.Peer{ID: prod}, manager, core.Batch{
			Epoch: epoch, Heartbeat: &core.Heartbeat{Interval: 30 * time.Second},
		}, nil)
	}
}

func (h testFleet) wantKnown(want ...core.Manager) {
	h.t.Helper()

	var have []core.Manager
	h.Range(func(s fleet.Status) bool {
		have = append(have, s.Manager)
		return true
	})

	slices.Sort(have)
	if !slices.Equal(have, want) {
		h.t.Errorf("the fleet knows %v, want %v", have, want)
	}
}

func TestFormerManagersAreForgottenWhenTheirAgentsHaveEnded(t *testing.T) {
	inTestFleet(t, func(f testFleet, r *reconciler) {
		interval := r.opts.Interval
		look := func(again time.Duration, managers ...core.Manager) {
			t.Helper()

			r.book.noteFormer(prodKey, managers, nil)
			if got := r.pauseOfReady(r.forgetFormer(prodKey, prod, managers)); got != again {
				t.Errorf("reconciled again in %v, want %v", got, again)
			}
		}

		look(interval, "old", "steady")
		f.beat("old agent", "by hand", "old", "steady")
		time.Sleep(interval)
		f.beat("old agent", "old", "steady")

		// The new agents are there, and the old one still beats.
		look(drain, "new", "steady")
		f.beat("new agent", "new", "steady")
		f.wantKnown("by hand", "new", "old", "steady")

		// It has ended without a word.
		time.Sleep(drain + time.Second)
		f.beat("new agent", "new", "steady")
		look(interval, "new", "steady")
		f.wantKnown("by hand", "new", "steady")

		// The last heartbeat was still on its way.
		f.beat("old agent", "old")
		look(drain, "new", "steady")
		time.Sleep(drain + time.Second)
		look(interval, "new", "steady")
		f.wantKnown("by hand", "new", "steady")

		// It is silent, but named again.
		f.beat("third agent", "old")
		look(interval, "new", "old", "steady")
		time.Sleep(time.Hour)
		look(interval, "new", "old", "steady")
		f.wantKnown("by hand", "new", "old", "steady")

		// No Watcher is left.
		look(interval)
		f.wantKnown("by hand")
	})
}

func TestAgentsThatGoOnDoNotKeepTheReconcilerBusy(t *testing.T) {
	inTestFleet(t, func(f testFleet, r *reconciler) {
		r.book.noteFormer(prodKey, nil, []core.Manager{"old"})
		soon := 0
		for range 60 {
			f.beat("e", "old")
			if r.forgetFormer(prodKey, prod, nil) {
				soon++
			}

			time.Sleep(time.Minute)
		}

		if soon == 0 || soon > 10 {
			t.Errorf("reconciled %d times within an hour, want some at first", soon)
		}

		f.wantKnown("old")
	})
}

// A runtime names the manager of another one, and then 10,000 others.
func TestARuntimeDecidesAboutItselfOnly(t *testing.T) {
	inTestFleet(t, func(f testFleet, r *reconciler) {
		f.beat("e", "by hand")
		hostile := client.ObjectKey{Name: "hostile"}
		r.book.addObject(hostile, "hostile")
		r.book.noteFormer(hostile, nil, []core.Manager{"by hand"})

		for n := range 10_000 {
			r.book.noteFormer(hostile, nil, []core.Manager{core.Manager(fmt.Sprint("m", n))})
		}

		time.Sleep(time.Hour)
		r.forgetFormer(prodKey, prod, nil)
		f.wantKnown("by hand")
		if n := len(r.book.objects[hostile].former.left); n != 100 {
			t.Errorf("%d managers of the hostile runtime are kept", n)
		}
	})
}

// Its finalizer was removed by hand. Another object may have the runtime.
func TestARuntimeIsForgottenWithItsLastObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t)
		first := newObject("first")
		second := newObject("second")
		c := newPlane(t, first, second)
		r := newReconciler(t, c, outOfReach)
		r.opts.Fleet = f.Fleet
		r.identify = func(context.Context, client.Object) (Identity, error) { return Identity{ID: prod, Domain: "a"}, nil }
		f.beat("e", "a")

		for _, object := range []client.Object{first, second} {
			_ = reconcileOnce(t, r, object)
		}

		for n, object := range []client.Object{first, second} {
			if n == 1 {
				f.wantKnown("a")
			}

			check(t, r.client.Get(t.Context(), client.ObjectKeyFromObject(object), object))
			object.SetFinalizers(nil)
			check(t, errors.Join(c.Update(t.Context(), object), c.Delete(t.Context(), object), reconcileOnce(t, r, object)))
		}

		f.wantKnown()
	})
}

func TestWithoutAFleetNothingIsLookedAtSooner(t *testing.T) {
	r := &reconciler{opts: Options{}.withDefaults(), book: (&Overview{}).newBook()}
	r.book.addObject(prodKey, prod)
	r.book.noteFormer(prodKey, nil, []core.Manager{"old"})
	if again := r.pauseOfReady(r.forgetFormer(prodKey, prod, nil)); again != r.opts.Interval {
		t.Errorf("reconciled again in %v, want %v", again, r.opts.Interval)
	}

	r.forgetRuntime(prod)
}
