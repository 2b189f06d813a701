package controllerruntime_test //nolint:testableexamples // It needs an API server. test/controlplane/operator runs the same calls.

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// setUp embeds the watcher in an operator. A change in a runtime reconciles the Cluster that has
// the name of the runtime.
func setUp(mgr manager.Manager, material keys.Source, clusters reconcile.Reconciler) error {
	cluster := &metav1.PartialObjectMetadata{}
	cluster.SetGroupVersionKind(schema.GroupVersionKind{Group: "fleet.example.com", Version: "v1", Kind: "Cluster"})
	watched, fleetErr := fleet.New(fleet.Options{Logger: controllerruntime.Logger(mgr.GetLogger())})
	runtimes, err := controllerruntime.NewRuntimes(mgr.GetCache(), cluster, controllerruntime.ByName,
		controllerruntime.RuntimesOptions{})
	if err := errors.Join(fleetErr, err); err != nil {
		return err
	}

	source, err := listen(mgr, material, watched, runtimes)
	if err != nil {
		return err
	}
	return builder.ControllerManagedBy(mgr).For(cluster).WatchesRawSource(source).Complete(clusters)
}

// listen takes the events of one manager.
func listen(
	mgr manager.Manager, material keys.Source, watched *fleet.Fleet, runtimes *controllerruntime.Runtimes,
) (*controllerruntime.Source[reconcile.Request], error) {
	events, err := controllerruntime.AddListener(mgr, controllerruntime.ListenerConfig{
		Addr:     ":8082",
		Senders:  controllerruntime.MutualTLS(material),
		Verifier: listener.SANPinning(runtimes),
		Fleet:    watched,
		Runtimes: runtimes,
	})
	if err != nil {
		return nil, err
	}
	requests := controllerruntime.EnqueueByRuntime(runtimes)
	return controllerruntime.SourceFor(events, "clusters", requests, controllerruntime.SourceOptions{})
}

// keyMaterial reads the files of a mounted Secret, and reads them again every 5 s: the CAs of the
// runtimes, and the certificate of the listener.
func keyMaterial(mgr manager.Manager, folder string) (*keys.Files, error) {
	return keys.NewFiles(keys.Paths{
		CA:          filepath.Join(folder, "ca.crt"),
		Certificate: filepath.Join(folder, "tls.crt"),
		Key:         filepath.Join(folder, "tls.key"),
	}, keys.FilesOptions{Logger: controllerruntime.Logger(mgr.GetLogger())})
}

func ExampleAddListener() {
	mgr, err := manager.New(config.GetConfigOrDie(), manager.Options{})
	if err != nil {
		panic(err)
	}

	clusters := reconcile.Func(func(_ context.Context, request reconcile.Request) (reconcile.Result, error) {
		fmt.Println("reconcile the runtime of", request)

		return reconcile.Result{}, nil
	})
	files, err := keyMaterial(mgr, "/etc/runtime-watcher")
	if err != nil {
		panic(err)
	}
	if err := setUp(mgr, files, clusters); err != nil {
		panic(err)
	}
	if err := mgr.Start(signals.SetupSignalHandler()); err != nil {
		panic(err)
	}
}
