package informer_test

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// The acceptor is usually an outbox. The configuration is that of a pod: rest.InClusterConfig.
func Example() {
	api := newServer()
	ctx, stop := context.WithCancel(context.Background())
	acceptor := core.AcceptorFunc(func(manager core.Manager, event core.WatchEvent) core.Outcome {
		if event.Resync { // The first list.
			fmt.Println(manager, "resync")
			api.put("widgets", newObject("w", 1, 1))
			return core.Accepted
		}

		fmt.Println(manager, event.Operation, event.WatchedGVK.Kind, event.Watched)
		stop()
		return core.Accepted
	})

	source, err := informer.New(api.config(), acceptor, []watch.Watch{{
		Name:     types.NamespacedName{Namespace: "default", Name: "widgets"},
		Manager:  "my-operator",
		Resource: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"},
		Selector: watch.Selector{Labels: map[string]string{"watched": "true"}},
	}}, informer.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}

	var running sync.WaitGroup
	running.Go(func() { _ = source.Start(ctx) })
	running.Wait()
	// Output:
	// my-operator resync
	// my-operator CREATE Widget default/w
}
