package runtimes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
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

// inTestFleet runs a test with virtual time.
func inTestFleet(t *testing.T, run func(f testFleet, forgetter *forgetter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t)
		run(f, newForgetter(f))
	})
}

func (h testFleet) beat(epoch string, managers ...core.Manager) {
	for _, manager := range managers {
		h.Observe(core.Peer{ID: prod}, manager, core.Batch{
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

func watches(managers ...core.Manager) (all []watch.Watch) {
	for _, manager := range managers {
		all = append(all, watch.Watch{Manager: manager})
	}
	return all
}

func TestFormerManagersAreForgottenWhenTheirAgentsHaveEnded(t *testing.T) {
	const interval = 10 * time.Minute
	inTestFleet(t, func(f testFleet, forgetter *forgetter) {
		look := func(again time.Duration, managers ...core.Manager) {
			t.Helper()
			forgetter.note(watches(managers...))
			if got := forgetter.forgetFormer(prodKey, prod, managers, interval); got != again {
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
	inTestFleet(t, func(f testFleet, forgetter *forgetter) {
		forgetter.note(watches("old"))
		forgetter.note(nil)
		soon := 0
		for range 60 {
			f.beat("e", "old")
			if forgetter.forgetFormer(prodKey, prod, nil, time.Hour) < time.Hour {
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

// A Watcher was renamed while no operator ran, and former agents still send heartbeats.
func TestManagersOfBeforeAreKnownFromTheRuntimes(t *testing.T) {
	inTestFleet(t, func(f testFleet, forgetter *forgetter) {
		forgetter.note(watches("new"))
		f.beat("e", "by hand", "old")
		forgetter.noteFormer(prodKey, []core.Manager{"old", "new"})
		time.Sleep(time.Hour)
		forgetter.forgetFormer(prodKey, prod, []core.Manager{"new"}, time.Hour)
		f.wantKnown("by hand")
		// What a Watcher names is not former, whatever another runtime says.
		f.beat("e", "new")
		time.Sleep(time.Hour)
		forgetter.noteFormer(prodKey, []core.Manager{"new"})
		forgetter.forgetFormer(prodKey, prod, nil, time.Hour)
		f.wantKnown("by hand", "new")
	})
}

// A runtime names the manager of another one, and then 10,000 others.
func TestARuntimeDecidesAboutItselfOnly(t *testing.T) {
	inTestFleet(t, func(f testFleet, forgetter *forgetter) {
		f.beat("e", "by hand")
		hostile := client.ObjectKey{Name: "hostile"}
		forgetter.noteFormer(hostile, []core.Manager{"by hand"})
		for n := range 10_000 {
			forgetter.noteFormer(hostile, []core.Manager{core.Manager(fmt.Sprint("m", n))})
		}
		time.Sleep(time.Hour)
		forgetter.forgetFormer(prodKey, prod, nil, time.Hour)
		f.wantKnown("by hand")
		if n := len(forgetter.candidates(hostile)); n != 100 || len(forgetter.candidates(prodKey)) != 0 {
			t.Errorf("%d managers of the hostile runtime are kept", n)
		}
		forgetter.end(hostile)
		if len(forgetter.former) != 0 {
			t.Error("they stay when it is gone")
		}
	})
}

// A manager from another source stays, with or without a Watcher.
func TestManagersThatAreSpokenToStay(t *testing.T) {
	inTestFleet(t, func(f testFleet, forgetter *forgetter) {
		forgetter.note(watches("setting"))
		f.beat("e", "setting")
		forgetter.note(nil)
		time.Sleep(time.Hour)
		forgetter.forgetFormer(prodKey, prod, []core.Manager{"setting"}, time.Hour)
		f.wantKnown("setting")
	})
}

// absent is a control plane without objects.
type absent struct{ client.Client }

func (absent) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, "object")
}

func TestARemovedRuntimeStaysForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t)
		r := &reconciler{
			client: absent{}, prototype: &corev1.ConfigMap{}, opts: Options{}.withDefaults(), forgetter: newForgetter(f),
		}
		object := client.ObjectKey{Namespace: "default", Name: "object"}
		f.beat("e", "a", "b")
		if again := r.forgetter.forget(object, prod); again != drain {
			t.Errorf("looked for again in %v, want %v", again, drain)
		}
		f.wantKnown()
		f.beat("e", "a") // It was on its way.
		gone := func() (again time.Duration) {
			result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: object})
			check(t, err)
			f.wantKnown()
			return result.RequeueAfter
		}
		if again := gone(); again != drain {
			t.Errorf("looked for again in %v, want %v", again, drain)
		}
		f.beat("e", "b")
		time.Sleep(drain)
		if again := gone(); again != 0 || len(r.forgetter.removed) != 0 {
			t.Errorf("looked for again in %v, %d are remembered, want it to end", again, len(r.forgetter.removed))
		}
		// Another one, of which this reconciler knows nothing.
		f.beat("e", "a")
		if result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: object}); err != nil ||
			result.RequeueAfter != 0 {
			t.Errorf("got %+v, %v", result, err)
		}
		f.wantKnown("a")
	})
}

// Its finalizer was removed by hand. Another object may have the runtime.
func TestARuntimeIsForgottenWithItsLastObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t)
		first, second := newObject("first"), newObject("second")
		c := newPlane(t, first, second)
		r := newReconciler(t, c, outOfReach)
		r.forgetter = newForgetter(f)
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
	forgetter := newForgetter(nil)
	forgetter.note(watches("old"))
	forgetter.note(nil)
	if again := forgetter.forgetFormer(prodKey, prod, nil, time.Hour); again != time.Hour {
		t.Errorf("reconciled again in %v, want an hour", again)
	}
	forgetter.forget(client.ObjectKey{Name: "object"}, prod)
}
