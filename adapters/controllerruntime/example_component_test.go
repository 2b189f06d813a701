package controllerruntime_test //nolint:testableexamples // It needs an API server. test/controlplane/operator runs the same calls.

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// setUp embeds the watcher in an operator. A change in a runtime reconciles the Kyma that has the
// name of the runtime.
func setUp(
	ctx context.Context, mgr manager.Manager, addr string, material keys.Source, kymas reconcile.Reconciler,
) error {
	kyma := &metav1.PartialObjectMetadata{}
	kyma.SetGroupVersionKind(schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"})
	watched, fleetErr := fleet.New(fleet.Options{Logger: controllerruntime.Logger(mgr.GetLogger())})
	runtimes, err := controllerruntime.NewRuntimes(ctx, mgr.GetCache(), kyma.GroupVersionKind(), controllerruntime.ByName,
		controllerruntime.RuntimesOptions{Fleet: watched, Managers: []core.Manager{"my-operator"}})
	if err := errors.Join(fleetErr, err); err != nil {
		return err
	}
	source, err := controllerruntime.SetUpListener(mgr, addr, "my-operator", controllerruntime.MutualTLS(material),
		listener.SANPinning(runtimes), controllerruntime.EnqueueByRuntime(runtimes),
		controllerruntime.ComponentOptions{Listener: listener.Options{Fleet: watched}})
	if err != nil {
		return err
	}
	return builder.ControllerManagedBy(mgr).For(kyma).WatchesRawSource(source).Complete(kymas)
}

func ExampleSetUpListener() {
	mgr, err := manager.New(config.GetConfigOrDie(), manager.Options{})
	if err != nil {
		panic(err)
	}

	kymas := reconcile.Func(func(_ context.Context, request reconcile.Request) (reconcile.Result, error) {
		fmt.Println("reconcile the runtime of", request)

		return reconcile.Result{}, nil
	})
	// The files of a mounted Secret, read again every 5 s: the CAs of the runtimes, and the certificate of
	// this listener.
	files, err := keys.NewFiles(keys.Paths{CA: "ca.crt", Certificate: "tls.crt", Key: "tls.key"}, keys.FilesOptions{})
	if err != nil {
		panic(err)
	}
	ctx := signals.SetupSignalHandler()
	if err := errors.Join(mgr.Add(files), setUp(ctx, mgr, ":8443", files, kymas), mgr.Start(ctx)); err != nil {
		panic(err)
	}
}
