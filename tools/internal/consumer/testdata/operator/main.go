// Operator is built as others build theirs: outside of the repository, from released modules. It
// polls a runtime seldom while events arrive from it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

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

func main() {
	if err := run(signals.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "operator:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	cluster, err := config.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := manager.New(cluster, manager.Options{LeaderElection: true, LeaderElectionID: "operator"})
	if err != nil {
		return err
	}
	material, err := keys.NewFiles(keys.Paths{CA: "ca.crt", Certificate: "tls.crt", Key: "tls.key"}, keys.FilesOptions{})
	if err != nil {
		return err
	}
	return errors.Join(mgr.Add(material), setUp(ctx, mgr, ":8443", material), mgr.Start(ctx))
}

func kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

func setUp(ctx context.Context, mgr manager.Manager, addr string, material keys.Source) error {
	runtimes, err := controllerruntime.NewRuntimes(ctx, mgr.GetCache(), kind(), controllerruntime.ByLabel("runtime-id"),
		controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}
	watched, err := fleet.New(fleet.Options{})
	if err != nil {
		return err
	}
	events, source, err := controllerruntime.RegisterListenerComponent(addr, "my-operator",
		listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{}), listener.SANPinning(runtimes),
		controllerruntime.EnqueueByRuntime(runtimes), controllerruntime.ComponentOptions{
			Listener: listener.Options{TLS: keys.ServerTLSConfig(material), Fleet: watched},
			Source:   controllerruntime.SourceOptions{Elected: mgr.Elected()},
		})
	if err != nil {
		return err
	}
	kyma := &metav1.PartialObjectMetadata{}
	kyma.SetGroupVersionKind(kind())
	return errors.Join(mgr.Add(events), builder.ControllerManagedBy(mgr).For(kyma, builder.OnlyMetadata).
		WatchesRawSource(source).Complete(&reconciler{runtimes: runtimes, fleet: watched, look: lookAt}))
}

// reconciler looks at one runtime, and again later.
type reconciler struct {
	runtimes *controllerruntime.Runtimes
	fleet    *fleet.Fleet
	look     func(context.Context, core.RuntimeID) error
}

func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	id, err := r.runtimes.ID(ctx, request.NamespacedName)
	if err == nil {
		err = r.look(ctx, id)
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: r.fleet.RequeueAfter(id).Round(time.Second)}, nil
}

func lookAt(context.Context, core.RuntimeID) error { return nil }
