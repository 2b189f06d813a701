package runtimes

import (
	"context"
	"errors"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
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

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownscheme"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// +kubebuilder:rbac:groups=operator.kyma-project.io,resources=watchers,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Parts are the needs of [SetUp]. All of them are required.
type Parts struct {
	// Object has the kind of the objects that represent runtimes: a typed object, or one with
	// metadata only or unstructured, with its kind set.
	Object client.Object
	// Identify returns the runtime that an object represents. It is called concurrently and must
	// not change the object. An error is reported and retried.
	Identify func(ctx context.Context, object client.Object) (Identity, error)
	// Connect returns a client for the runtime of an object, without cache. It is called
	// concurrently, for each reconcile, so it should keep its clients, as that of [NewKubeconfigs]
	// does. It must not change the object. An error is reported and retried. If the error wraps
	// [ErrGone], a deleted object is let go. Such an error must not mean that a runtime cannot be
	// reached at the moment.
	Connect func(ctx context.Context, object client.Object) (client.Client, error)
	// Certificates issues the certificates of agents and listener.
	Certificates Certificates
	// Installer installs the agents.
	Installer *installation.Installer
}

// SetUp adds controllers to a manager: for the objects of the kind of [Parts].Object, for those of
// them that fail, and for the CA. Each object represents a runtime. The controllers run on the
// replica that leads. An error names every invalid parameter.
//
// The scheme of the manager must have the kind, unless object is metadata or unstructured with its
// kind set. It needs no Watchers, and may have another Go type for them: Watchers then have a cache
// of their own. The operator needs the rights to get, list, watch and patch the kind.
//
// Each part is required.
func SetUp(mgr ctrl.Manager, parts Parts, opts Options) (failed error) {
	defer func() { failed = option.Unless(failed == nil, "runtimes: %w", failed) }()
	opts = opts.withDefaults()
	if err := errors.Join(
		option.NoneNegative(opts),
		option.Unless(parts.Object != nil, "want Parts.Object, have none"),
		option.Unless(parts.Identify != nil, "want Parts.Identify, have none"),
		option.Unless(parts.Connect != nil, "want Parts.Connect, have none"),
		option.Unless(parts.Certificates != nil, "want Parts.Certificates, have none"),
		option.Unless(parts.Installer != nil, "want Parts.Installer, have none"),
		checkService(parts.Certificates, parts.Installer),
	); err != nil {
		return err
	}
	installer := parts.Installer
	gvk, err := apiutil.GVKForObject(parts.Object, mgr.GetScheme())
	if err != nil {
		return err
	}
	plane, err := ownscheme.Cluster(mgr, v1beta2.AddNamed(installer.Names()), &v1beta2.Watcher{})
	if err != nil {
		return err
	}
	r := &reconciler{
		client: mgr.GetClient(), watchers: plane.GetClient(), prototype: parts.Object, gvk: gvk,
		identify: parts.Identify, connect: parts.Connect, certificates: parts.Certificates, installer: installer, opts: opts, names: installer.Names(),
		events: mgr.GetEventRecorder(opts.Name),
		book:   opts.Overview.newBook(), secrets: mgr.GetAPIReader(), pulled: utilcache.NewExpiring(),
	}
	r.lanes = r.newLanes()
	if _, heartbeats := installer.Agents(); heartbeats && opts.Fleet != nil {
		r.book.status = opts.Fleet.Get
	}
	r.followFleet()
	changes, err := r.follow(mgr)
	if err != nil {
		return err
	}
	return errors.Join(r.addControllers(mgr, plane.GetCache()), mgr.Add(r.keepAuthority(r.reconcileAll)), mgr.Add(changes),
		mgr.Add(r.checkFleet(mgr.GetLogger())))
}

func checkService(issuer Certificates, installer *installation.Installer) error {
	checked, ok := issuer.(ServiceChecker)
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
	relevant := []builder.ForOption{builder.WithPredicates(r.relevant())}
	if _, ok := r.prototype.(*metav1.PartialObjectMetadata); ok {
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

// relevant drops changes of the status, where the generation shows them, and of the reconciler.
func (r *reconciler) relevant() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld, e.ObjectNew
		return after.GetGeneration() == 0 || before.GetGeneration() != after.GetGeneration() ||
			!maps.Equal(before.GetLabels(), after.GetLabels()) ||
			!maps.Equal(r.othersOf(before), r.othersOf(after)) ||
			before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero()
	}}
}

func (r *reconciler) othersOf(object client.Object) map[string]string {
	annotations := make(map[string]string)
	maps.Copy(annotations, object.GetAnnotations())
	delete(annotations, r.names.Key(annotationRemoval))
	return annotations
}

// ErrGone means that there is no way to a runtime: it does not exist yet, or no longer.
var ErrGone = remote.ErrGone

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
	// Joins marks a runtime that joins by itself: its administrator installs the agent. It needs no
	// kubeconfig, gets no certificate and no finalizer, and its status comes from the heartbeats in
	// [Options].Fleet alone. Domain is not used here.
	Joins bool
}

// Certificates is the port to the issuer. Its methods may be called concurrently and do not wait
// for certificates. They may be a [ServiceChecker].
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

// ServiceChecker is an optional method of [Certificates]. [SetUp] fails with its error if the
// certificates are not for the Service of the agent.
type ServiceChecker interface {
	CheckService(service types.NamespacedName) error
}

var (
	_ Certificates   = (*certificates.Certificates)(nil)
	_ ServiceChecker = (*certificates.Certificates)(nil)
)

const (
	defaultRetry   = 3 * time.Second
	defaultTimeout = time.Minute
	defaultGiveUp  = time.Hour
)

// Options are the optional settings of [SetUp]. The zero value is the documented default.
type Options struct {
	// Name is the name of the controller in logs, metrics and events. Default: "runtimes".
	Name string
	// Interval is the time between two reconciles of a runtime that is ready, plus up to a tenth at
	// random. They correct changes, and deliver new certificates that no watch shows. Default: 10
	// min.
	Interval time.Duration
	// Retry is the shortest time between two reconciles of a runtime that is not ready, and
	// Interval the longest one. In between, it is a quarter of the time since the runtime was
	// ready. Default: 3 s.
	Retry time.Duration
	// Timeout bounds one reconcile of a runtime. Writes to the control plane may take as long
	// again. Default: 1 min.
	Timeout time.Duration
	// GiveUp is how long a deleted object is held while the removal of the agent fails, from its
	// first failure, which is noted in an annotation of the object. The agent then stays in the
	// runtime, without certificates. Default: 1 h.
	GiveUp time.Duration
	// Concurrent is the number of concurrent reconciles of runtimes, and also that of runtimes that
	// fail, which have workers of their own. Default: 10.
	Concurrent int
	// ControlPlane returns the address that the agents of a runtime send to, <host>:<port>, such as
	// that of watcher.GatewayAddress. It is called at each reconcile. Default: the address of the
	// installer.
	ControlPlane func(ctx context.Context, object client.Object) (string, error)
	// Kubeconfigs are the Secrets with kubeconfigs, so that a runtime with a new one is reconciled
	// immediately. Default: a new kubeconfig is used within Interval.
	Kubeconfigs KubeconfigSecrets
	// PullSecret is the name of a Secret of the type kubernetes.io/dockerconfigjson in the control
	// plane, which each runtime gets a copy of to pull the image. A new content reaches a runtime
	// within Interval and 1 min. Default: none.
	PullSecret types.NamespacedName
	// Fleet is the fleet of the listener in this process. Runtimes that were removed are removed
	// there, and managers that no Watcher names any more once no agent sends heartbeats for them. A
	// runtime that becomes stale, or degraded for a reason that a reconcile can end, is reconciled
	// at once, and all objects are applied. While many are stale, these wait for Interval. Default:
	// none.
	Fleet *fleet.Fleet
	// Overview gets the states of all runtimes, for metrics. Default: none.
	Overview *Overview
	// Report gets the status of a runtime after each reconcile, as [ReportCondition] does. It may
	// be called concurrently. An error is retried, but does not hold a deleted object. Default:
	// none.
	Report func(ctx context.Context, object client.Object, status installation.Status) error
}

func (o Options) withDefaults() Options {
	return option.WithDefaults(o, Options{
		Name:         "runtimes",
		Interval:     10 * time.Minute,
		Retry:        defaultRetry,
		Timeout:      defaultTimeout,
		GiveUp:       defaultGiveUp,
		Concurrent:   10,
		ControlPlane: func(context.Context, client.Object) (string, error) { return "", nil },
		Overview:     &Overview{},
		Report:       func(context.Context, client.Object, installation.Status) error { return nil },
	})
}

// labelSkip is the word of the label of objects with runtimes that are left as they are, with the
// value "true". The deletion of such an object still removes the agent.
const labelSkip = "skip-reconciliation"

func (r *reconciler) skips(object client.Object) bool {
	return object.GetLabels()[r.names.Key(labelSkip)] == "true"
}
