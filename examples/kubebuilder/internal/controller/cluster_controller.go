// Package controller contains the controllers of the operator.
package controller

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	fleetv1 "github.com/runtime-watcher/runtime-watcher/examples/kubebuilder/api/v1"
)

// ClusterReconciler reconciles Clusters: once for each change in the remote cluster, and seldom
// without a change.
type ClusterReconciler struct {
	client.Client

	Fleet *fleet.Fleet
	// Work is done in the remote cluster.
	Work func(ctx context.Context, cluster *fleetv1.Cluster) error
}

// Reconcile implements [reconcile.Reconciler].
func (r *ClusterReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	cluster := &fleetv1.Cluster{}
	if err := r.Get(ctx, request.NamespacedName, cluster); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err) // An object that is gone is not polled.
	}

	if err := r.Work(ctx, cluster); err != nil {
		return ctrl.Result{}, err
	}

	return ctrl.Result{RequeueAfter: r.Fleet.RequeueAfter(core.RuntimeID(cluster.Spec.ID))}, nil
}

// SetupWithManager adds the controller. A change in a remote cluster enqueues its Cluster.
func (r *ClusterReconciler) SetupWithManager(
	mgr ctrl.Manager, events *controllerruntime.Listener, clusters *controllerruntime.Runtimes,
) error {
	source, err := controllerruntime.SourceFor(events, "clusters", controllerruntime.EnqueueByRuntime(clusters),
		controllerruntime.SourceOptions{})
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).For(&fleetv1.Cluster{}).WatchesRawSource(source).Complete(r)
}

var _ reconcile.Reconciler = (*ClusterReconciler)(nil)
