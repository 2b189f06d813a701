package outbox_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

func Example() {
	forwarder := core.ForwarderFunc(func(_ context.Context, manager core.Manager, batch core.Batch) error {
		fmt.Println(manager, "gets", batch.Events[0].Watched)

		return nil
	})

	o, err := outbox.New(forwarder, outbox.Options{})
	if err != nil {
		fmt.Println(err)

		return
	}

	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)

	go func() { ended <- o.Start(ctx) }()

	event := core.WatchEvent{Watched: types.NamespacedName{Namespace: "default", Name: "demo"}}
	fmt.Println(o.Accept("my-operator", event))
	stop() // Start delivers the pending events before it returns.
	fmt.Println(<-ended)
	fmt.Println(o.Counts()["my-operator"].Delivered, "delivered")

	// Output:
	// accepted
	// my-operator gets default/demo
	// <nil>
	// 1 delivered
}
