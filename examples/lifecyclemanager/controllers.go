package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/cause"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/kyma"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/manifest"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// addControllers adds the controllers that do the work of the operator. Beside their own objects,
// each watches one source of events.
func addControllers(w *watching) error {
	clusters := func(events *cause.Source) skr.Clusters {
		return skr.Clusters{
			Client: w.mgr.GetClient(), Direct: w.mgr.GetAPIReader(),
			Connect: w.connections.For(events.Source), RequeueAfter: w.fleet.RequeueAfter,
		}
	}
	kymas := &kyma.Reconciler{Clusters: clusters(w.kymas), Events: w.mgr.GetEventRecorder(string(kymaManager))}
	manifests := &manifest.Reconciler{Clusters: clusters(w.modules)}
	changed := builder.WithPredicates(
		predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, agentChanged()))

	forKymas := ctrl.NewControllerManagedBy(w.mgr).For(&v1beta2.Kyma{}, changed).
		Owns(&v1beta2.Manifest{}).
		Watches(&v1beta2.ModuleTemplate{}, allKymas(w.mgr.GetClient(), w.catalogSpread)).
		WatchesRawSource(w.kymas).
		WithOptions(options(w.pollOtherwise))
	forManifests := ctrl.NewControllerManagedBy(w.mgr).For(&v1beta2.Manifest{}, changed).
		WatchesRawSource(w.modules).
		WithOptions(options(w.pollOtherwise))
	return errors.Join(forKymas.Complete(w.kymas.Count(kymas)), forManifests.Complete(w.modules.Count(manifests)))
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

// agentChanged lets an update pass that changes the condition about the agent.
func agentChanged() predicate.Predicate {
	agent := func(object client.Object) metav1.Condition {
		if kyma, ok := object.(*v1beta2.Kyma); ok {
			if c := meta.FindStatusCondition(kyma.Status.Conditions, v1beta2.WatcherInstalled); c != nil {
				return *c
			}
		}
		return metav1.Condition{}
	}
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return agent(e.ObjectOld) != agent(e.ObjectNew)
	}}
}

type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]

// allKymas requests all Kymas, because a changed ModuleTemplate may concern each of them. Each is
// requested at a random moment within spread.
func allKymas(kymas client.Reader, spread time.Duration) handler.EventHandler {
	enqueue := func(ctx context.Context, template client.Object, requests queue) {
		list := &v1beta2.KymaList{}
		if err := kymas.List(ctx, list, client.InNamespace(template.GetNamespace())); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "the new catalog waits for the next reconcile of each runtime")
		}
		for i := range list.Items {
			request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])}
			requests.AddAfter(request, rand.N(spread+1)) //nolint:gosec // Jitter is not a secret.
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { enqueue(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { enqueue(ctx, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { enqueue(ctx, e.Object, q) },
	}
}
