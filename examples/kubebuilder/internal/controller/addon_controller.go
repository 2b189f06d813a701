package controller

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	fleetv1 "github.com/runtime-watcher/runtime-watcher/examples/kubebuilder/api/v1"
)

// AddonReconciler reconciles the Addons of Clusters: once for each change in the remote cluster of
// an add-on, and seldom without a change.
type AddonReconciler struct {
	client.Client

	Fleet *fleet.Fleet
	// Clusters returns the identity of the cluster of an add-on. The fleet identifies clusters by
	// this identity.
	Clusters *controllerruntime.Runtimes
	// Work is done in the remote cluster of the add-on.
	Work func(ctx context.Context, addon *fleetv1.Addon) error
}

// Reconcile implements [reconcile.Reconciler].
func (r *AddonReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	addon := &fleetv1.Addon{}
	if err := r.Get(ctx, request.NamespacedName, addon); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}

	if err := r.Work(ctx, addon); err != nil {
		return ctrl.Result{}, err
	}

	cluster := types.NamespacedName{Namespace: addon.Namespace, Name: addon.Spec.Cluster}
	id, err := r.Clusters.ID(ctx, cluster)
	if err != nil {
		return ctrl.Result{}, err
	}

	// The poll also replaces an event that came while the add-ons could not be listed.
	return ctrl.Result{RequeueAfter: r.Fleet.RequeueAfter(id)}, nil
}

// SetupWithManager adds the controller. A change in a remote cluster enqueues the add-ons of its
// Cluster. An add-on is not the object that represents the cluster.
func (r *AddonReconciler) SetupWithManager(mgr ctrl.Manager, events *controllerruntime.Listener) error {
	source, err := controllerruntime.SourceFor(events, "addons", controllerruntime.EnqueueFor(r.Clusters, r.addonsOf),
		controllerruntime.SourceOptions{})
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).For(&fleetv1.Addon{}).WatchesRawSource(source).Complete(r)
}

// addonsOf requests the add-ons of a Cluster, from the cache.
func (r *AddonReconciler) addonsOf(ctx context.Context, cluster client.Object) []reconcile.Request {
	addons := &fleetv1.AddonList{}
	if err := r.List(ctx, addons, client.InNamespace(cluster.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "the add-ons wait for their next poll")
		return nil
	}

	var requests []reconcile.Request
	for i := range addons.Items {
		addon := &addons.Items[i]
		if addon.Spec.Cluster == cluster.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(addon)})
		}
	}
	return requests
}
