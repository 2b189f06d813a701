package main

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/kyma"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/manifest"
)

// addControllers adds the controllers that do the work of the operator. Beside their own objects,
// each watches one source of events.
func addControllers(w *watching) error {
	kymas := &kyma.Reconciler{
		Client: w.mgr.GetClient(), Direct: w.mgr.GetAPIReader(),
		Connect: w.connections.Get, RequeueAfter: w.fleet.RequeueAfter,
	}
	manifests := &manifest.Reconciler{
		Client: w.mgr.GetClient(), Direct: w.mgr.GetAPIReader(), Connect: w.connections.Get,
		RequeueAfter: w.fleet.RequeueAfter,
	}
	changed := builder.WithPredicates(
		predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}))

	forKymas := ctrl.NewControllerManagedBy(w.mgr).For(&v1beta2.Kyma{}, changed).
		Owns(&v1beta2.Manifest{}).
		Watches(&v1beta2.ModuleTemplate{}, handler.EnqueueRequestsFromMapFunc(allKymas(w.mgr.GetClient()))).
		WatchesRawSource(w.kymas.source).
		WithOptions(options(w.pollOtherwise))
	forManifests := ctrl.NewControllerManagedBy(w.mgr).For(&v1beta2.Manifest{}, changed).
		WatchesRawSource(w.modules.source).
		WithOptions(options(w.pollOtherwise))
	return errors.Join(forKymas.Complete(w.kymas.count(kymas)), forManifests.Complete(w.modules.count(manifests)))
}

// options bounds the wait after an error: a runtime that cannot be reached is asked as often as one
// that is not fresh.
func options(longestWait time.Duration) controller.Options {
	const concurrent, firstWait = 10, 200 * time.Millisecond
	return controller.Options{
		MaxConcurrentReconciles: concurrent,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](
			firstWait, longestWait),
	}
}

// allKymas requests all Kymas: a changed ModuleTemplate may concern each of them.
func allKymas(kymas client.Reader) handler.MapFunc {
	return func(ctx context.Context, template client.Object) (requests []ctrl.Request) {
		list := &v1beta2.KymaList{}
		if err := kymas.List(ctx, list, client.InNamespace(template.GetNamespace())); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "the new catalog waits for the next look at each runtime")
		}
		for i := range list.Items {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
		return requests
	}
}
