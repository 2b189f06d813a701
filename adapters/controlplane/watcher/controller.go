package watcher

import (
	"context"
	"fmt"
	"slices"
	"strings"

	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// +kubebuilder:rbac:groups=operator.kyma-project.io,resources=watchers,verbs=get;list;watch
// +kubebuilder:rbac:groups=operator.kyma-project.io,resources=watchers/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=operator.kyma-project.io,resources=watchers/finalizers,verbs=update
// +kubebuilder:rbac:groups=networking.istio.io,resources=gateways,verbs=get;list;watch
// +kubebuilder:rbac:groups=networking.istio.io,resources=virtualservices,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=gateway.networking.k8s.io,resources=gateways,verbs=get;list;watch
// +kubebuilder:rbac:groups=gateway.networking.k8s.io,resources=httproutes,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// AddToScheme makes a scheme know Watchers, and the routes and gateways of Istio and of the Gateway API.
func AddToScheme(scheme *runtime.Scheme) error {
	kinds := runtime.NewSchemeBuilder(v1beta2.AddToScheme, networkingv1beta1.AddToScheme, gatewayv1.Install)

	return kinds.AddToScheme(scheme)
}

// SetUp adds the controller to a manager. The scheme of the manager must know what [AddToScheme] adds. It needs the rights of
// deploy/controlplane, and must run once in a cluster: leader election, which is the manager's, sees to that.
func SetUp(mgr ctrl.Manager, opts Options) error {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return fmt.Errorf("watcher controller: %w", err)
	}

	r := &reconciler{
		client: mgr.GetClient(), fresh: mgr.GetAPIReader(), events: mgr.GetEventRecorder(opts.Name), routing: opts.routing(), opts: opts,
	}
	relevant := builder.WithPredicates(predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}))

	err := ctrl.NewControllerManagedBy(mgr).Named(opts.Name).
		For(&v1beta2.Watcher{}, relevant).
		Watches(r.routing.route(), handler.EnqueueRequestsFromMapFunc(namesake)).
		Watches(&v1beta2.Watcher{}, handler.EnqueueRequestsFromMapFunc(r.siblings), relevant).
		Watches(r.routing.gateway(), handler.EnqueueRequestsFromMapFunc(r.all), relevant).
		Complete(r)
	if err != nil {
		return fmt.Errorf("watcher controller: %w", err)
	}

	return nil
}

func (o Options) routing() routing {
	if o.Routing == HTTPRoute {
		return httpRoutes{}
	}

	return virtualServices{clusterDomain: o.ClusterDomain}
}

type reconciler struct {
	client  client.Client
	fresh   client.Reader // without cache
	events  events.EventRecorder
	routing routing
	opts    Options
}

// Reconcile makes the route of one Watcher be as it should, and reports how that went.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	w := &v1beta2.Watcher{}
	if err := r.client.Get(ctx, request.NamespacedName, w); err != nil {
		if client.IgnoreNotFound(err) == nil {
			err = r.remove(ctx, request.NamespacedName)
		}

		return reconcile.Result{}, err
	}

	if !w.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // Something else holds it; its route goes when it does.
	}

	result, err := r.route(ctx, w)

	var again error
	if err != nil {
		result, again = failed(err)
	}

	if err := r.report(ctx, w, result); err != nil {
		return reconcile.Result{}, err
	}

	return reconcile.Result{}, again
}

// route leaves the route of before in place when there can be none now: it may still work.
func (r *reconciler) route(ctx context.Context, w *v1beta2.Watcher) (outcome, error) {
	manager, err := Manager(w)
	if err != nil {
		return outcome{}, err
	}

	if _, err := Watch(w); err != nil {
		return outcome{}, problem(ReasonWatchInvalid, "%v", err)
	}

	selector, err := selectorOf(&w.Spec.Gateway.LabelSelector)
	if err != nil {
		return outcome{}, err
	}

	route, where, err := r.routing.build(ctx, r.client, selector, w, manager)
	if err != nil {
		return outcome{}, err
	}

	if err := r.apply(ctx, w, route); err != nil {
		return outcome{}, err
	}

	rivals, err := r.rivals(ctx, w, manager)
	if err != nil {
		return outcome{}, err
	}

	if len(rivals) > 0 {
		return outcome{
			v1beta2.StateWarning, metav1.ConditionTrue, ReasonManagerShared,
			fmt.Sprintf("manager %s is led to another service by %s: one of the services gets all events", manager, strings.Join(rivals, ", ")),
		}, nil
	}

	return outcome{
		v1beta2.StateReady, metav1.ConditionTrue, ReasonRouteApplied,
		fmt.Sprintf("%s leads %s from %s", r.routing.kind(), strings.Join(prefixes(manager), ", "), where),
	}, nil
}

// rivals are the Watchers that lead the same manager elsewhere.
func (r *reconciler) rivals(ctx context.Context, w *v1beta2.Watcher, m core.Manager) (names []string, err error) {
	watchers := &v1beta2.WatcherList{}
	if err := r.client.List(ctx, watchers); err != nil {
		return nil, fmt.Errorf("list Watchers: %w", err)
	}

	for i := range watchers.Items {
		other := &watchers.Items[i]
		if other.ManagerName() == string(m) && other.Spec.ServiceInfo != w.Spec.ServiceInfo && other.DeletionTimestamp.IsZero() {
			names = append(names, other.Namespace+"/"+other.Name)
		}
	}

	slices.Sort(names)

	return names, nil
}

// namesake goes by the name, not by the owner: a route that belongs to somebody else, or lost its owner, matters, too.
func namesake(_ context.Context, route client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(route)}}
}

// siblings are the other Watchers whose status a Watcher may have changed: all, as the manager that it has left is not known.
func (r *reconciler) siblings(ctx context.Context, changed client.Object) []reconcile.Request {
	requests := r.all(ctx, changed)
	if len(requests) <= 1 {
		return nil
	}

	return requests
}

// all are the Watchers: which of them a gateway concerned before it changed is not known, and they are few.
func (r *reconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	watchers := &v1beta2.WatcherList{}
	if err := r.client.List(ctx, watchers); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "watchers can not be listed")

		return nil
	}

	requests := make([]reconcile.Request, len(watchers.Items))
	for i := range watchers.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&watchers.Items[i])
	}

	return requests
}
