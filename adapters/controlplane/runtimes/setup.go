package runtimes

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/installation"
)

// +kubebuilder:rbac:groups=operator.kyma-project.io,resources=watchers,verbs=get;list;watch

// SetUp adds to a manager a controller for all objects of the kind of object, each of which represents a runtime, and one that looks after
// the CA. Both run on the replica that leads.
//
// The scheme of the manager must know Watchers (v1beta2.AddToScheme), and the kind, unless object is metadata or unstructured with
// its kind set. The operator needs the rights to get, list, watch and patch that kind, and its finalizers.
func SetUp(
	mgr ctrl.Manager, object client.Object, identify Identify, connect Connect,
	issuer Certificates, installer *installation.Installer, opts Options,
) error {
	opts = opts.withDefaults()
	problems := []error{opts.validate()}

	want := func(what string, given bool) {
		if !given {
			problems = append(problems, fmt.Errorf("want %s, have none", what))
		}
	}

	want("an object", object != nil)
	want("Identify", identify != nil)
	want("Connect", connect != nil)
	want("Certificates", issuer != nil)
	want("an Installer", installer != nil)

	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("runtimes: %w", err)
	}

	gvk, err := apiutil.GVKForObject(object, mgr.GetScheme())
	if err != nil {
		return fmt.Errorf("runtimes: %w", err)
	}

	r := &reconciler{
		client: mgr.GetClient(), scheme: mgr.GetScheme(), prototype: object, gvk: gvk,
		identify: identify, connect: connect, certificates: issuer, installer: installer, opts: opts, forgetter: newForgetter(opts.Fleet),
		confirming: make(chan event.GenericEvent, 1),
	}

	return errors.Join(r.setUp(mgr), mgr.Add(manager.RunnableFunc(r.lookAfterCA)))
}

func (r *reconciler) setUp(mgr ctrl.Manager) error {
	watched := builder.WithPredicates(predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}))
	relevant := []builder.ForOption{builder.WithPredicates(relevant())}

	if _, ok := r.prototype.(*metav1.PartialObjectMetadata); ok {
		relevant = append(relevant, builder.OnlyMetadata)
	}

	err := ctrl.NewControllerManagedBy(mgr).Named(r.opts.Name).
		For(r.prototype, relevant...).
		Watches(&v1beta2.Watcher{}, handler.EnqueueRequestsFromMapFunc(r.all), watched).
		WatchesRawSource(source.Channel(r.confirming, handler.EnqueueRequestsFromMapFunc(r.all))).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.opts.Concurrent}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("runtimes: %w", err)
	}

	return nil
}

// relevant leaves out what an operator writes into a status, as far as the kind tells that apart by its generation.
func relevant() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld, e.ObjectNew

		return after.GetGeneration() == 0 || before.GetGeneration() != after.GetGeneration() ||
			!maps.Equal(before.GetLabels(), after.GetLabels()) || !maps.Equal(before.GetAnnotations(), after.GetAnnotations()) ||
			before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero()
	}}
}

// all are the objects that represent runtimes, whatever has changed.
func (r *reconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	list, err := r.newList()
	if err == nil {
		err = r.client.List(ctx, list)
	}

	var requests []reconcile.Request

	if err == nil {
		err = meta.EachListItem(list, func(item runtime.Object) error {
			object, err := meta.Accessor(item)
			if err == nil {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: object.GetName()}})
			}

			return err //nolint:wrapcheck // It is logged at once.
		})
	}

	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "runtimes can not be listed: they learn what is new at their next look")
	}

	return requests
}

// newList returns the kind of list that the manager has a cache for already.
func (r *reconciler) newList() (client.ObjectList, error) {
	gvk := r.gvk.GroupVersion().WithKind(r.gvk.Kind + "List")

	switch r.prototype.(type) {
	case *metav1.PartialObjectMetadata:
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk)

		return list, nil
	case *unstructured.Unstructured:
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)

		return list, nil
	default:
		return typedList(r.scheme, gvk)
	}
}

func typedList(scheme *runtime.Scheme, gvk schema.GroupVersionKind) (client.ObjectList, error) {
	object, err := scheme.New(gvk)
	if err != nil {
		return nil, fmt.Errorf("runtimes: %w", err)
	}

	list, ok := object.(client.ObjectList)
	if !ok {
		return nil, fmt.Errorf("runtimes: %s is no list", gvk)
	}

	return list, nil
}
