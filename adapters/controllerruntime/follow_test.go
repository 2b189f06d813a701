package controllerruntime_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

func beating(fleetOf *fleet.Fleet, id core.RuntimeID, manager core.Manager, leaving bool) {
	beat := &core.Heartbeat{Number: 1, Interval: time.Second, Canary: core.CanaryAlive, Leaving: leaving}
	if leaving {
		beat.Number = 2
	}
	fleetOf.Receiver().Observe(core.Peer{ID: id}, manager, core.Batch{Epoch: "e", Heartbeat: beat}, nil)
}

// A runtime that is not fresh any more is reconciled within the short interval, although its last
// reconcile requested the long one.
func TestFollowEnqueuesRuntimesThatAreNotFresh(t *testing.T) {
	queues := map[string]func() workqueue.TypedRateLimitingInterface[core.RuntimeID]{
		"priority queue": func() workqueue.TypedRateLimitingInterface[core.RuntimeID] {
			return priorityqueue.New[core.RuntimeID]("test")
		},
		"plain queue": func() workqueue.TypedRateLimitingInterface[core.RuntimeID] {
			return workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[core.RuntimeID]())
		},
	}
	for name, newQueue := range queues {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				watched := must(fleet.New(fleet.Options{PollOtherwise: time.Minute}))
				source := controllerruntime.NewSource(byRuntime, controllerruntime.SourceOptions{})
				source.Follow(watched, "my-operator")
				// Without a controller, nothing is enqueued.
				beating(watched, "early", "my-operator", false)
				beating(watched, "early", "my-operator", true)
				queue := newQueue()
				defer queue.ShutDown()
				check(t, source.Start(t.Context(), queue))
				beating(watched, "other", "another", false)
				beating(watched, "other", "another", true)
				beating(watched, "bad", "my-operator", false)
				beating(watched, "bad", "my-operator", true)
				beating(watched, "skr-1", "my-operator", false)
				time.Sleep(time.Hour)
				synctest.Wait()
				if n := queue.Len(); n != 0 {
					t.Fatalf("%d requests while the runtime is fresh, want none", n)
				}

				beating(watched, "skr-1", "my-operator", true)
				began := time.Now()
				request, _ := queue.Get()
				if took := time.Since(began); request != "skr-1" || took > 66*time.Second {
					t.Errorf("%s was enqueued after %v, want skr-1 within a minute", request, took)
				}

				queue.Done(request)
				runtime.KeepAlive(source) // A controller has it. The fleet would let the collector free it.
			})
		})
	}
}

var errBad = errors.New("bad")

func byRuntime(_ context.Context, d core.Delivery) ([]core.RuntimeID, error) {
	if d.Runtime == "bad" {
		return nil, errBad
	}
	return []core.RuntimeID{d.Runtime}, nil
}

// A controller manager may start again in the same process, with the same fleet.
func TestAFleetKeepsNoSource(t *testing.T) {
	watched := must(fleet.New(fleet.Options{}))
	kept := func() weak.Pointer[controllerruntime.Source[core.RuntimeID]] {
		source := controllerruntime.NewSource(byRuntime, controllerruntime.SourceOptions{})
		source.Follow(watched, "my-operator")
		return weak.Make(source)
	}()
	runtime.GC()
	if kept.Value() != nil {
		t.Error("the fleet keeps a source that nobody else has")
	}

	runtime.KeepAlive(watched)
}
