package watcher

import (
	"context"
	"fmt"

	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownscheme"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
)

// +kubebuilder:rbac:groups=operator.kyma-project.io,resources=watchers,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=operator.kyma-project.io,resources=watchers/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=operator.kyma-project.io,resources=watchers/finalizers,verbs=update
// +kubebuilder:rbac:groups=networking.istio.io,resources=gateways,verbs=get;list;watch
// +kubebuilder:rbac:groups=networking.istio.io,resources=virtualservices,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=gateway.networking.k8s.io,resources=gateways,verbs=get;list;watch
// +kubebuilder:rbac:groups=gateway.networking.k8s.io,resources=httproutes,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// AddToScheme adds Watchers to a scheme, and the routes and gateways of Istio and of the Gateway
// API.
func AddToScheme(scheme *runtime.Scheme) error {
	return AddNamed(names.Names{})(scheme)
}

// AddNamed is [AddToScheme] for Watchers with the group and the kind of an operator, like
// [v1beta2.AddNamed].
func AddNamed(n names.Names) func(scheme *runtime.Scheme) error {
	kinds := runtime.NewSchemeBuilder(v1beta2.AddNamed(n), networkingv1beta1.AddToScheme, gatewayv1.Install)
	return kinds.AddToScheme
}

// SetUp adds the controller to a manager. The controller runs on the leading replica and needs the
// rights in deploy/controlplane. An error names every invalid option.
//
// The scheme of the manager does not need the kinds of [AddToScheme] and may contain other Go types
// for them. The controller then uses a separate client and cache.
func SetUp(mgr ctrl.Manager, opts Options) (failed error) {
	defer func() {
		if failed != nil {
			failed = fmt.Errorf("watcher controller: %w", failed)
		}
	}()

	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return err
	}

	routes := opts.newRouting()
	kinds := []client.Object{&v1beta2.Watcher{}}
	if routes != nil {
		kinds = append(kinds, routes.newRoute(), routes.newGateway())
	}

	plane, err := ownscheme.Cluster(mgr, AddNamed(opts.Names), kinds...)
	if err != nil {
		return err
	}

	gateways, err := opts.gatewayCache(mgr, plane)
	if err != nil {
		return err
	}

	r := &reconciler{
		client: plane.GetClient(), fresh: plane.GetAPIReader(), gateways: gateways, events: plane.GetEventRecorder(opts.Name),
		routing: routes, opts: opts,
	}

	changed := predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{})
	watches := func(kind client.Object, to handler.EventHandler, relevant ...predicate.Predicate) source.Source {
		return source.Kind(plane.GetCache(), kind, to, relevant...)
	}
	controller := ctrl.NewControllerManagedBy(mgr).Named(opts.Name).
		WatchesRawSource(watches(&v1beta2.Watcher{}, &handler.EnqueueRequestForObject{}, changed))

	if routes != nil {
		// A route has the name of its Watcher. Its owner may be another object or missing.
		controller = controller.
			WatchesRawSource(watches(routes.newRoute(), &handler.EnqueueRequestForObject{}, ownFields(opts.Names))).
			WatchesRawSource(watches(&v1beta2.Watcher{}, handler.EnqueueRequestsFromMapFunc(r.allWatchers), changed)).
			WatchesRawSource(source.Kind(gateways, routes.newGateway(), handler.EnqueueRequestsFromMapFunc(r.allWatchers), changed))
	}

	return controller.Complete(r)
}

func (o Options) gatewayCache(mgr ctrl.Manager, plane cluster.Cluster) (cache.Cache, error) {
	if len(o.GatewayNamespaces) == 0 {
		return plane.GetCache(), nil
	}

	namespaces := make(map[string]cache.Config, len(o.GatewayNamespaces))
	for _, namespace := range o.GatewayNamespaces {
		namespaces[namespace] = cache.Config{}
	}

	own, err := cache.New(plane.GetConfig(), cache.Options{
		HTTPClient: plane.GetHTTPClient(), Scheme: plane.GetScheme(), Mapper: plane.GetRESTMapper(), DefaultNamespaces: namespaces,
	})
	if err != nil {
		return nil, err
	}

	return own, mgr.Add(own)
}

func (o Options) newRouting() routing {
	switch o.Routing {
	case HTTPRoute:
		return httpRoutes{where: o.where()}
	case NoRouting:
		return nil
	default:
		return virtualServices{clusterDomain: o.ClusterDomain, where: o.where()}
	}
}

// ownFields drops changes of fields that belong to others. Another program may change one of them
// at each write, and each apply would lead to the next one.
func ownFields(n names.Names) predicate.Predicate {
	own := func(route client.Object) []any {
		fields := []any{
			route.GetGeneration(), route.GetLabels()[n.ManagedBy()], route.GetOwnerReferences(),
			route.GetAnnotations()[n.InstalledBy()],
		}
		if accepted, ok := route.(*gatewayv1.HTTPRoute); ok {
			fields = append(fields, accepted.Status)
		}
		return fields
	}

	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !equality.Semantic.DeepEqual(own(e.ObjectOld), own(e.ObjectNew))
	}}
}

// allWatchers returns all Watchers. They are few. A change of one, also its end, may free or take a
// manager, and the former labels of a gateway are not known.
func (r *reconciler) allWatchers(ctx context.Context, _ client.Object) []reconcile.Request {
	watchers := &v1beta2.WatcherList{}
	if err := r.client.List(ctx, watchers); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot list the Watchers")
		return nil
	}

	requests := make([]reconcile.Request, len(watchers.Items))
	for i := range watchers.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&watchers.Items[i])
	}

	return requests
}
