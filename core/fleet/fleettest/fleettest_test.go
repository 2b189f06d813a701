package fleettest_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/fleet/fleettest"
)

const (
	runtime core.RuntimeID = "runtime-1"
	kyma    core.Manager   = "kyma"
)

func newFleet(t *testing.T) *fleet.Fleet {
	t.Helper()

	f, err := fleet.New(fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func put(f *fleet.Fleet, c fleet.Condition) {
	if c.State == fleet.Unknown {
		f.Forget(runtime)
		return
	}
	fleettest.Set(f, runtime, kyma, c)
}

// TestEachConditionFollowsEachOther also holds in a bubble, with a clock that stands still.
func TestEachConditionFollowsEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, from := range fleet.Conditions() {
			for _, to := range fleet.Conditions() {
				f := newFleet(t)
				if from.State != fleet.Unknown { // It is, as the fleet is new.
					put(f, from)
				}
				put(f, to)
				if to.State == fleet.Stale {
					to.Reason = fleet.ReasonStopped
				}

				got := f.Get(runtime, kyma)
				if got.State != to.State || got.Reason != to.Reason {
					t.Errorf("from %v to %v: %s %s", from, to, got.State, got.Reason)
				}
			}
		}
	})
}

// Observers see one change for each call of Set, as with a real agent.
func TestOneTransition(t *testing.T) {
	f := newFleet(t)
	var seen []fleet.State
	f.OnChange(func(change fleet.Transition) { seen = append(seen, change.To.State) })
	fleettest.Set(f, runtime, kyma, fleet.Condition{State: fleet.Fresh})
	fleettest.Set(f, runtime, kyma, fleet.Condition{State: fleet.Degraded, Reason: fleet.ReasonCanaryLost})
	fleettest.Set(f, runtime, kyma, fleet.Condition{State: fleet.Stale})

	if want := []fleet.State{fleet.Fresh, fleet.Degraded, fleet.Stale}; !slices.Equal(seen, want) {
		t.Errorf("an observer sees %v, want %v", seen, want)
	}
}

// A test that asks for a condition that does not exist must not pass.
func TestUnknownReason(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an unknown reason does not panic")
		}
	}()
	fleettest.Set(newFleet(t), runtime, kyma, fleet.Condition{State: fleet.Degraded, Reason: "tired"})
}

// Without further heartbeats, a fresh runtime becomes stale after the documented two hours.
func TestFreshEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		fleettest.Set(f, runtime, kyma, fleet.Condition{State: fleet.Fresh})
		time.Sleep(2 * time.Hour)
		if got := f.Get(runtime, kyma).State; got != fleet.Fresh {
			t.Errorf("after 2 h: %s, want fresh", got)
		}

		time.Sleep(time.Second)
		if got := f.Get(runtime, kyma).State; got != fleet.Stale {
			t.Errorf("after more than 2 h: %s, want stale", got)
		}
	})
}

func Example() {
	f, err := fleet.New(fleet.Options{Random: func() float64 { return 0.5 }}) // No jitter, for the output.
	if err != nil {
		panic(err)
	}
	fleettest.Set(f, "runtime-1", "my-operator", fleet.Condition{State: fleet.Fresh})
	fmt.Println("fresh:", f.RequeueAfter("runtime-1"))
	fleettest.Set(f, "runtime-1", "my-operator", fleet.Condition{State: fleet.Degraded, Reason: fleet.ReasonCanaryLost})
	fmt.Println("degraded:", f.RequeueAfter("runtime-1"))
	// Output:
	// fresh: 30m0s
	// degraded: 1m0s
}
