package fleet_test

import (
	"fmt"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// A listener calls Observe for each request. An operator asks how soon to look again, and follows
// changes.
func Example() {
	f, err := fleet.New(fleet.Options{Random: func() float64 { return 0.5 }}) // No jitter, for the output.
	if err != nil {
		panic(err)
	}
	f.OnChange(func(change fleet.Transition) {
		fmt.Printf("%s was %s and is %s %q\n", change.To.Runtime, change.From, change.To.State, change.To.Reason)
	})

	for n, canary := range []core.CanaryState{core.CanaryAlive, core.CanaryLost} {
		beat := &core.Heartbeat{Number: uint64(n + 1), Interval: 30 * time.Second, Canary: canary}
		f.Receiver().Observe(core.Peer{ID: "runtime-1"}, "my-operator", core.Batch{Epoch: "e", Heartbeat: beat}, nil)
		fmt.Println("look again after", f.RequeueAfter("runtime-1"))
	}
	// Output:
	// runtime-1 was unknown and is fresh ""
	// look again after 30m0s
	// runtime-1 was fresh and is degraded "canary_lost"
	// look again after 1m0s
}
