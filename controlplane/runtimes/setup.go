package runtimes

import (
	"errors"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownscheme"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// +kubebuilder:rbac:groups=operator.kyma-project.io,resources=watchers,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetUp adds three controllers to a manager: for the objects of the kind of [Parts].Object, for the
// objects that fail, and for the CA. Each object represents a runtime. The controllers run on the
// leading replica. An error names every invalid parameter.
//
// The scheme of the manager must contain the kind, unless Object is a metadata-only or unstructured
// object with its kind set. The scheme does not need Watchers. If the scheme contains another Go
// type for Watchers, SetUp adds a separate cache for them. The operator needs the rights to get,
// list, watch and patch the kind.
//
// Each part is required.
func SetUp(mgr ctrl.Manager, parts Parts, opts Options) error {
	if err := setUp(mgr, parts, opts.withDefaults()); err != nil {
		return fmt.Errorf("runtimes: %w", err)
	}
	return nil
}

func setUp(mgr ctrl.Manager, parts Parts, opts Options) error {
	if err := errors.Join(option.NoneNegative(opts), parts.validate()); err != nil {
		return err
	}

	gvk, err := apiutil.GVKForObject(parts.Object, mgr.GetScheme())
	if err != nil {
		return err
	}
	plane, err := ownscheme.Cluster(mgr, v1beta2.AddNamed(parts.Installer.Names()), &v1beta2.Watcher{})
	if err != nil {
		return err
	}

	r := reconcilerOf(mgr, parts, opts)
	r.gvk = gvk
	r.watchers = plane.GetClient()
	r.lanes = r.newLanes()
	r.followFleet()
	changes, err := r.followObjects(mgr)
	if err != nil {
		return err
	}
	return errors.Join(
		r.addControllers(mgr, plane.GetCache()),
		mgr.Add(r.keepAuthority(r.reconcileAll)),
		mgr.Add(changes),
		mgr.Add(r.checkFleet(mgr.GetLogger())),
	)
}

func (r *reconciler) addControllers(mgr ctrl.Manager, watchers cache.Cache) error {
	watched := predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{})
	relevant := []builder.ForOption{builder.WithPredicates(r.relevantChanges())}
	if _, isMetadata := r.prototype.(*metav1.PartialObjectMetadata); isMetadata {
		relevant = append(relevant, builder.OnlyMetadata)
	}

	err := ctrl.NewControllerManagedBy(mgr).Named(r.opts.Name).
		For(r.prototype, relevant...).
		WatchesRawSource(source.Kind[client.Object](watchers, &v1beta2.Watcher{}, r.fanOut(), watched)).
		WatchesRawSource(r.lanes.Regular).
		WithOptions(r.controllerOptions()).
		Complete(r.lanes.Regular)

	failingErr := ctrl.NewControllerManagedBy(mgr).Named(r.opts.Name + "-failing").
		WatchesRawSource(r.lanes.Slow).
		WithOptions(r.controllerOptions()).
		Complete(r.lanes.Slow)
	return errors.Join(err, failingErr)
}

// controllerOptions have a limiter for errors of the control plane itself, such as conflicts.
func (r *reconciler) controllerOptions() controller.Options {
	const firstRetry = 100 * time.Millisecond
	return controller.Options{
		MaxConcurrentReconciles: r.opts.Concurrent, UsePriorityQueue: new(true),
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
			firstRetry, r.opts.Interval),
	}
}

// relevantChanges drops changes of the status, where the generation shows them, and of the
// reconciler.
func (r *reconciler) relevantChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before := e.ObjectOld
		after := e.ObjectNew

		if after.GetGeneration() == 0 || before.GetGeneration() != after.GetGeneration() {
			return true
		}
		if before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() {
			return true
		}
		isSame := maps.Equal(before.GetLabels(), after.GetLabels()) && maps.Equal(r.othersOf(before), r.othersOf(after))
		return !isSame
	}}
}
