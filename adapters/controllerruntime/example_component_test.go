package controllerruntime_test //nolint:testableexamples // It needs an API server. test/controlplane/operator runs setUp.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// setUp embeds the watcher in an operator. A change in a runtime reconciles the Kyma that has the
// name of the runtime.
func setUp(
	ctx context.Context, mgr manager.Manager, addr string, mtls *tls.Config, roots listener.RootsFunc, kymas reconcile.Reconciler,
) error {
	kyma := &metav1.PartialObjectMetadata{}
	kyma.SetGroupVersionKind(schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"})
	runtimes, err := controllerruntime.NewRuntimes(ctx, mgr.GetCache(), kyma.GroupVersionKind(),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}
	events, source, err := controllerruntime.RegisterListenerComponent(addr, "my-operator",
		listener.FromTLSWithRoots(roots, listener.PeerOptions{}), listener.SANPinning(runtimes),
		controllerruntime.EnqueueByRuntime(runtimes), controllerruntime.ComponentOptions{Listener: listener.Options{TLS: mtls}})
	if err != nil {
		return err
	}
	return errors.Join(mgr.Add(events), builder.ControllerManagedBy(mgr).For(kyma).WatchesRawSource(source).Complete(kymas))
}

func ExampleRegisterListenerComponent() {
	mgr, err := manager.New(config.GetConfigOrDie(), manager.Options{})
	if err != nil {
		panic(err)
	}

	kymas := reconcile.Func(func(_ context.Context, request reconcile.Request) (reconcile.Result, error) {
		fmt.Println("reconcile the runtime of", request)

		return reconcile.Result{}, nil
	})
	// The CAs of the runtimes' certificates. This pool is empty, so it trusts no certificate. A
	// pool that is nil would trust the roots of the system.
	//
	// Key files are read by keys.NewFiles. Add the files to the controller manager, and use
	// keys.Roots(files) as roots and keys.ServerTLSConfig(files) as mtls.
	cas := x509.NewCertPool()
	roots := func() *x509.CertPool { return cas }
	mtls := &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: cas}

	ctx := signals.SetupSignalHandler()
	if err := errors.Join(setUp(ctx, mgr, ":8443", mtls, roots, kymas), mgr.Start(ctx)); err != nil {
		panic(err)
	}
}
