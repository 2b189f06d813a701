package coretest_test

import (
	"context"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
)

// Memory and Recorder are a transport and a control plane inside a test. TestForwarder wants the
// same two parts of any transport.
func ExampleMemory() {
	controlPlane := &coretest.Recorder{}
	transport := coretest.NewMemory(controlPlane)
	batch := core.NewBatch(coretest.Changed("Deployment", "default", "demo"))

	ctx := context.Background()
	fmt.Println(transport.Forward(ctx, "my-operator", batch))
	transport.SetDown(true)
	fmt.Println(transport.Forward(ctx, "my-operator", batch))
	for _, event := range controlPlane.Acknowledged("my-operator") {
		fmt.Println(event.Operation, event.WatchedGVK.Kind, event.Watched)
	}
	// Output:
	// <nil>
	// forward to my-operator: not ready
	// UPDATE Deployment default/demo
}
