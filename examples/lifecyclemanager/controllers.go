package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/cause"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/kyma"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/manifest"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// addControllers adds the controllers that do the work of the operator. In addition to its own
// objects, each controller watches one source of events.
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

	budgets := remote.NewBudgets()
	ofKymas := newLanes(func(r ctrl.Request) string { return r.String() }, w.kymas.Count(kymas), budgets)
	ofManifests := newLanes(runtimeOf, w.modules.Count(manifests), budgets)

	forKymas := ctrl.NewControllerManagedBy(w.mgr).For(&v1beta2.Kyma{}, changed).
		Owns(&v1beta2.Manifest{}).
		Watches(&v1beta2.ModuleTemplate{}, allKymas(w.mgr.GetClient(), w.catalogSpread)).
		WatchesRawSource(w.kymas)
	forManifests := ctrl.NewControllerManagedBy(w.mgr).For(&v1beta2.Manifest{}, changed).
		WatchesRawSource(w.modules)
	forTemplates := ctrl.NewControllerManagedBy(w.mgr).For(&v1beta2.ModuleTemplate{}).
		Watches(&v1beta2.Manifest{}, handler.EnqueueRequestsFromMapFunc(templateOf))

	return errors.Join(w.addLanes(forKymas, "kyma", ofKymas), w.addLanes(forManifests, "manifest", ofManifests),
		forTemplates.Complete(&kyma.Templates{Client: w.mgr.GetClient(), Direct: w.mgr.GetAPIReader()}))
}

type lanes = remote.Lanes[ctrl.Request]

const (
	// slowAfter is the time of a reconcile after which its runtime belongs to the slow lane.
	slowAfter = 3 * time.Second
	// workers is the number of concurrent reconciles in each lane of a controller.
	workers = 10
)

// newLanes returns lanes for a reconciler, so that a slow or silent runtime takes no worker from
// other runtimes.
func newLanes(runtime func(ctrl.Request) string, r reconcile.Reconciler, budgets *remote.Budgets) *lanes {
	return remote.NewLanes(runtime, r, remote.LanesOptions[ctrl.Request]{SlowAfter: slowAfter, Budgets: budgets})
}

// runtimeOf returns the Kyma of a Manifest.
func runtimeOf(request ctrl.Request) string {
	request.Name = v1beta2.KymaOfManifest(request.Name)
	return request.String()
}

// addLanes adds the controllers of both lanes. A runtime in the slow lane is retried as often as a
// runtime in the regular lane.
func (w *watching) addLanes(regular *builder.Builder, name string, of *lanes) error {
	slow := ctrl.NewControllerManagedBy(w.mgr).Named(name + "-slow").
		WatchesRawSource(of.Slow).WithOptions(options(w.pollOtherwise))
	return errors.Join(slow.Complete(of.Slow),
		regular.WatchesRawSource(of.Regular).WithOptions(options(w.pollOtherwise)).Complete(of.Regular))
}

// templateOf requests the ModuleTemplate of a Manifest, which may be the last one that used it.
func templateOf(_ context.Context, object client.Object) []ctrl.Request {
	installed, ok := object.(*v1beta2.Manifest)
	if !ok {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{
		Namespace: installed.Namespace, Name: installed.Spec.Template.Name,
	}}}
}

// options bounds the wait after an error: a runtime that cannot be reached is retried as often as a
// runtime that is not fresh.
func options(longestWait time.Duration) controller.Options {
	const firstWait = 200 * time.Millisecond
	return controller.Options{
		MaxConcurrentReconciles: workers,
		RateLimiter: uneven{workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](
			firstWait, longestWait)},
	}
}

// uneven adds up to half of each wait. Two Kymas that claim one cluster in the same moment both
// withdraw, and with equal waits they would claim it in the same moment again.
type uneven struct {
	workqueue.TypedRateLimiter[ctrl.Request]
}

// When implements [workqueue.TypedRateLimiter].
func (u uneven) When(request ctrl.Request) time.Duration {
	return wait.Jitter(u.TypedRateLimiter.When(request), 0.5)
}

// agentChanged accepts an update that changes the condition about the agent.
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
