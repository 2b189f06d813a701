package controllerruntime_test

import (
	"fmt"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// An operator polls fresh runtimes seldom, and all others often.
func Example_adaptivePolling() {
	watched, err := fleet.New(fleet.Options{
		PollFresh: time.Hour, PollOtherwise: time.Minute,
		Random: func() float64 { return 0.5 }, // No jitter, for the sake of the output.
	})
	if err != nil {
		panic(err)
	}

	watched.OnChange(func(change fleet.Transition) {
		fmt.Println(change.To.Runtime, "was", change.From, "and is", change.To.State)
	})

	fmt.Println("a runtime without heartbeat:", watched.RequeueAfter("skr-1"))

	// A listener calls Observe for each request. The last heartbeat announces that the agent stops.
	for n, leaving := range []bool{false, true} {
		beat := &core.Heartbeat{
			Number: uint64(n + 1), Interval: 30 * time.Second, Canary: core.CanaryAlive, Leaving: leaving,
		}
		watched.Observe(core.Peer{ID: "skr-1"}, "my-operator", core.Batch{Epoch: "e", Heartbeat: beat}, nil)
		fmt.Println(watched.RequeueAfter("skr-1"))
	}
	// Output:
	// a runtime without heartbeat: 1m0s
	// skr-1 was unknown and is fresh
	// 1h0m0s
	// skr-1 was fresh and is stale
	// 1m0s
}
