package multicluster_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mccontroller "sigs.k8s.io/multicluster-runtime/pkg/controller"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/adapters/multicluster"
)

// A cluster that is engaged requests its objects. examples/multicluster has a listener and real
// clusters.
func ExampleComplete() {
	ctx, stop := context.WithCancel(context.Background())
	// remote.NewKubeconfigs returns such a function. Here the cluster is in memory.
	remote := fake.NewClientBuilder().WithObjects(configMap("settings")).Build()
	provider := multicluster.NewProvider(
		func(context.Context, client.Object) (client.Client, error) { return remote, nil }, multicluster.ProviderOptions{})
	local := newManager(controllerruntimetest.NewCache(secret("runtime-1", "1")))
	mgr, err := mcmanager.WithMultiCluster(local, provider)
	if err != nil {
		panic(err)
	}
	if err := provider.SetupWithManager(ctx, mgr); err != nil {
		panic(err)
	}

	source := controllerruntime.NewSource(multicluster.Enqueue, controllerruntime.SourceOptions{})
	controller := mcbuilder.ControllerManagedBy(mgr).Named("settings").
		WithOptions(mccontroller.Options{SkipNameValidation: new(true)})
	err = multicluster.Complete(mgr, controller, multicluster.Objects{
		Source: source, Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		Reconciler: mcreconcile.Func(func(_ context.Context, r mcreconcile.Request) (reconcile.Result, error) {
			fmt.Println("reconcile", r)
			stop()
			return reconcile.Result{}, nil
		}),
	})
	if err != nil {
		panic(err)
	}
	if err := mgr.Start(ctx); err != nil {
		panic(err)
	}
	// Output: reconcile cluster://runtime-1/default/settings
}
