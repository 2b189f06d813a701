package controllerruntime_test

import (
	"context"
	"fmt"

	"k8s.io/client-go/util/workqueue"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// A source serves a controller of any request type, here one that reconciles whole runtimes.
func ExampleNewSource() {
	source := controllerruntime.NewSource(func(_ context.Context, d core.Delivery) ([]core.RuntimeID, error) {
		return []core.RuntimeID{d.Runtime}, nil
	}, controllerruntime.SourceOptions{})

	ctx := context.Background()
	event := core.Delivery{Runtime: "skr-1", Manager: "my-operator"}
	fmt.Println(source.Handle(ctx, event))

	// A controller does this at its start.
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[core.RuntimeID]())
	defer queue.ShutDown()

	if err := source.Start(ctx, queue); err != nil {
		panic(err)
	}

	fmt.Println(source.Handle(ctx, event), source.Handle(ctx, event))
	fmt.Println(queue.Len(), "request")
	// Output:
	// not ready: the controller has not started
	// <nil> <nil>
	// 1 request
}
