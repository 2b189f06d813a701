package runtimes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownscheme"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// +kubebuilder:rbac:groups=operator.kyma-project.io,resources=watchers,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetUp adds controllers to a manager: for the objects of the kind of object, for those of them
// that fail, and for the CA. Each object represents a runtime. The controllers run on the replica
// that leads. An error names every invalid parameter.
//
// The scheme of the manager must have the kind, unless object is metadata or unstructured with its
// kind set. It needs no Watchers, and may have another Go type for them: Watchers then have a cache
// of their own. The operator needs the rights to get, list, watch and patch the kind.
//
// identify returns the runtime that an object represents, and connect a client for it, without
// cache. Both are called concurrently and must not change the object. An error is reported and
// retried. connect is called for each reconcile, so it should keep its clients, as that of
// [NewKubeconfigs] does. If its error wraps [ErrGone], a deleted object is let go. Such an error
// must not mean that a runtime cannot be reached at the moment.
func SetUp(
	mgr ctrl.Manager, object client.Object,
	identify func(ctx context.Context, object client.Object) (Identity, error),
	connect func(ctx context.Context, object client.Object) (client.Client, error),
	issuer Certificates, installer *installation.Installer, opts Options,
) (failed error) {
	defer func() { failed = option.Unless(failed == nil, "runtimes: %w", failed) }()
	opts = opts.withDefaults()
	if err := errors.Join(
		option.NoneNegative(opts),
		option.Unless(object != nil, "want an object, have none"),
		option.Unless(identify != nil, "want identify, have none"),
		option.Unless(connect != nil, "want connect, have none"),
		option.Unless(issuer != nil, "want Certificates, have none"),
		option.Unless(installer != nil, "want an Installer, have none"),
		checkService(issuer, installer),
	); err != nil {
		return err
	}
	gvk, err := apiutil.GVKForObject(object, mgr.GetScheme())
	if err != nil {
		return err
	}
	plane, err := ownscheme.Cluster(mgr, v1beta2.AddToScheme, &v1beta2.Watcher{})
	if err != nil {
		return err
	}
	r := &reconciler{
		client: mgr.GetClient(), scheme: mgr.GetScheme(), watchers: plane.GetClient(), prototype: object, gvk: gvk,
		identify: identify, connect: connect, certificates: issuer, installer: installer, opts: opts,
		events:     mgr.GetEventRecorder(opts.Name),
		pullSecret: pullSecret{reader: mgr.GetAPIReader(), name: opts.PullSecret},
		forgetter:  newForgetter(nil),
	}
	if _, heartbeats := installer.Agents(); heartbeats && opts.Fleet != nil {
		opts.Overview.edit(func(o *Overview) { o.status = opts.Fleet.Get })
	}
	r.followFleet()
	changes, err := r.follow(mgr)
	if err != nil {
		return err
	}
	return errors.Join(r.addControllers(mgr, plane.GetCache()), mgr.Add(r.keepAuthority(r.reconcileAll)), mgr.Add(changes))
}

// checkService fails if the certificates are not for the Service of the agent, in each runtime.
func checkService(issuer Certificates, installer *installation.Installer) error {
	checked, ok := issuer.(interface {
		CheckService(service types.NamespacedName) error
	})
	if !ok || installer == nil {
		return nil
	}
	if service, _ := installer.Agents(); service.Name != "" {
		return checked.CheckService(service)
	}
	return nil
}

func (r *reconciler) addControllers(mgr ctrl.Manager, watchers cache.Cache) error {
	watched := predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{})
	relevant := []builder.ForOption{builder.WithPredicates(relevant())}
	if _, ok := r.prototype.(*metav1.PartialObjectMetadata); ok {
		relevant = append(relevant, builder.OnlyMetadata)
	}
	err := ctrl.NewControllerManagedBy(mgr).Named(r.opts.Name).
		For(r.prototype, relevant...).
		WatchesRawSource(source.Kind[client.Object](watchers, &v1beta2.Watcher{}, r.fanOut(), watched)).
		WatchesRawSource(r.regular.source()).
		WithOptions(r.controllerOptions()).
		Complete(r)
	failingErr := ctrl.NewControllerManagedBy(mgr).Named(r.opts.Name + "-failing").
		WatchesRawSource(r.failing.source()).
		WithOptions(r.controllerOptions()).
		Complete(reconcile.Func(r.retry))
	return errors.Join(err, failingErr)
}

// controllerOptions are those of both lanes. The limiter is for errors of the control plane itself,
// such as conflicts.
func (r *reconciler) controllerOptions() controller.Options {
	const firstRetry = 100 * time.Millisecond
	return controller.Options{
		MaxConcurrentReconciles: r.opts.Concurrent, UsePriorityQueue: new(true),
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
			firstRetry, r.opts.Interval),
	}
}

// relevant drops changes of the status, where the generation shows them, and of the reconciler.
func relevant() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld, e.ObjectNew
		return after.GetGeneration() == 0 || before.GetGeneration() != after.GetGeneration() ||
			!maps.Equal(before.GetLabels(), after.GetLabels()) ||
			!maps.Equal(othersOf(before), othersOf(after)) ||
			before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero()
	}}
}

// othersOf returns the annotations of others, never nil.
func othersOf(object client.Object) map[string]string {
	annotations := make(map[string]string)
	maps.Copy(annotations, object.GetAnnotations())
	delete(annotations, annotationRemoval)
	return annotations
}

// all returns all objects that represent runtimes.
func (r *reconciler) all(ctx context.Context) (requests []reconcile.Request) {
	list, err := r.newList()
	if err == nil {
		err = r.client.List(ctx, list)
	}
	if err == nil {
		err = meta.EachListItem(list, func(item runtime.Object) error {
			object, err := meta.Accessor(item)
			if err == nil {
				key := client.ObjectKey{Namespace: object.GetNamespace(), Name: object.GetName()}
				requests = append(requests, reconcile.Request{NamespacedName: key})
			}
			return err
		})
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "runtimes cannot be listed, so a change waits for their next interval")
	}
	return requests
}

// newList returns the kind of list for which the manager has a cache already.
func (r *reconciler) newList() (list client.ObjectList, err error) {
	gvk := r.gvk.GroupVersion().WithKind(r.gvk.Kind + "List")
	switch r.prototype.(type) {
	case *metav1.PartialObjectMetadata:
		list = &metav1.PartialObjectMetadataList{}
	case *unstructured.Unstructured:
		list = &unstructured.UnstructuredList{}
	default:
		object, err := r.scheme.New(gvk)
		typed, isList := object.(client.ObjectList)
		if !isList {
			return nil, errors.Join(fmt.Errorf("want a scheme with the list %s", gvk), err)
		}
		list = typed
	}
	list.GetObjectKind().SetGroupVersionKind(gvk)
	return list, nil
}

// ErrGone means that there is no way to a runtime: it does not exist yet, or no longer.
var ErrGone = errors.New("runtime is gone, or not there yet")

// Identity identifies a runtime.
type Identity struct {
	// ID becomes the Common Name of the client certificate. It must never change while an object
	// exists. Empty means that the object represents no runtime.
	ID core.RuntimeID
	// Domain is the registered domain of the runtime, as in the annotation skr-domain. It is not
	// used for an object that is being deleted.
	Domain string
	// Remove removes the agent, its certificates and the finalizer although the object stays, as
	// for a runtime that goes back to a former agent.
	Remove bool
}

// Certificates is the port to the issuer. Its methods may be called concurrently and do not wait
// for certificates. One with the method CheckService of [certificates.Certificates] is asked by
// [SetUp] whether its certificates are for the Service of the agent.
type Certificates interface {
	// Reconcile keeps the CA and the certificate of the listener.
	Reconcile(ctx context.Context) (certificates.Status, error)
	// EnsureRuntime returns the material of a runtime. An error has the reason
	// runtime_taken when the runtime has another owner.
	EnsureRuntime(ctx context.Context, r certificates.Runtime) (certificates.RuntimeStatus, error)
	// OwnsRuntime reports whether the certificates of a runtime belong to its owner. It is true if
	// there are none.
	OwnsRuntime(ctx context.Context, r certificates.Runtime) (bool, error)
	// RemoveRuntime removes the certificates of a runtime, unless they belong to another owner.
	RemoveRuntime(ctx context.Context, r certificates.Runtime) error
}

var _ Certificates = (*certificates.Certificates)(nil)
