package controllerruntimetest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/listener/listenertest"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// An operator without a cluster: controller manager, controller, SAN pinning and listener are those
// of production. The cache and the connection are in memory.
func ExampleCache() {
	objects := controllerruntimetest.NewCache(kyma("kyma-1", "runtime-1", "one.example.com"))
	skip := true
	opts := manager.Options{
		NewCache:  func(*rest.Config, cache.Options) (cache.Cache, error) { return objects, nil },
		NewClient: func(*rest.Config, client.Options) (client.Client, error) { return nil, nil },
		Metrics:   metricsserver.Options{BindAddress: "0"}, Logger: logr.Discard(),
	}
	opts.Controller.SkipNameValidation = &skip // Only as other tests use the name, too.
	mgr := must(manager.New(&rest.Config{}, opts))

	runtimes := newRuntimes(objects)
	events := must(controllerruntime.AddListener(mgr, controllerruntime.ListenerConfig{
		Addr: "127.0.0.1:0", Senders: controllerruntime.BehindGateway(listenertest.Peers()), Verifier: listener.SANPinning(runtimes),
	}))
	source, err := controllerruntime.SourceFor(events, "my-operator", controllerruntime.EnqueueByRuntime(runtimes),
		controllerruntime.SourceOptions{})
	reconciled := make(chan string)
	kymas := reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		reconciled <- fmt.Sprint(request, " of ", must(runtimes.ID(ctx, request.NamespacedName)))
		return reconcile.Result{}, nil
	})
	err = errors.Join(err, builder.ControllerManagedBy(mgr).Named("events").WatchesRawSource(source).Complete(kymas))
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- mgr.Start(ctx) }()
	<-mgr.Elected()

	runtime := listenertest.Forwarder(events, core.Peer{ID: "runtime-1", DNSNames: []string{"one.example.com"}})
	change := core.NewBatch(coretest.Changed("Deployment", "default", "demo"))
	sent := false
	for !sent { // Until the controller has started.
		sent = runtime.Forward(ctx, "my-operator", change) == nil
	}
	fmt.Println("reconcile", <-reconciled)
	stop()
	fmt.Println(<-ended)
	// Output:
	// reconcile kcp-system/kyma-1 of runtime-1
	// <nil>
}
