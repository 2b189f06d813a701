package watcher

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
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
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Routing is the kind of object that leads events from a gateway to a service.
type Routing string

const (
	// VirtualService is the route of Istio, networking.istio.io/v1beta1.
	VirtualService Routing = "VirtualService"
	// HTTPRoute is the route of the Gateway API, gateway.networking.k8s.io/v1.
	HTTPRoute Routing = "HTTPRoute"
	// NoRouting makes no routes, for runtimes that connect to their operator without a gateway. The
	// status still reports whether a Watcher is valid.
	NoRouting Routing = "None"
)

const fieldOwner = "runtime-watcher"

// Options are the optional settings of [SetUp]. The zero value is the documented default.
type Options struct {
	// Routing is the kind of the routes. Its custom resource definitions must be installed. Routes
	// of the other kinds that an earlier setting made are removed. Default: [VirtualService].
	Routing Routing
	// Names are the names of the operator: the group and the kind of the Watchers, and the label of
	// the routes. They must equal the Names of the installer. Default: the defaults of
	// [names.Names].
	Names names.Names
	// Name is the name of the controller in logs, metrics and events. Default: "watcher".
	Name string
	// Owner is the identity of this control plane, as in installation.Options. It becomes the
	// annotation [names.Names.InstalledBy] of each route. A route with another value stays
	// unchanged. Default: none, so only the UID of the Watcher decides.
	Owner string
	// GatewayNamespaces are the namespaces in which gateways are selected. The controller then
	// needs the rights on gateways only in these namespaces. Default: all namespaces.
	GatewayNamespaces []string
	// ClusterDomain is the DNS domain of the services in the control plane. Default:
	// "cluster.local".
	ClusterDomain string
	// Installed returns the number of runtimes in which a generation of a Watcher is installed and
	// the number of all runtimes, as runtimes.Overview does, for the condition Ready. It is called
	// every 30 s for each Watcher and must not block. Default: the condition reports only the
	// route.
	Installed func(watcher types.NamespacedName, generation int64) (installed, all int)
}

func (o Options) withDefaults() Options {
	o.Names = o.Names.WithDefaults()
	o.Routing = cmp.Or(o.Routing, VirtualService)
	o.Name = cmp.Or(o.Name, "watcher")
	o.ClusterDomain = cmp.Or(o.ClusterDomain, "cluster.local")

	return o
}

func (o Options) validate() error {
	wrong := validation.IsDNS1123Subdomain(o.ClusterDomain)
	problems := []error{
		invalidNames(o.Names),
		option.Unless(slices.Contains([]Routing{VirtualService, HTTPRoute, NoRouting}, o.Routing),
			"Routing: want %q, %q or %q, have %.40q", VirtualService, HTTPRoute, NoRouting, o.Routing),
		option.Unless(wrong == nil, "ClusterDomain: %s, have %.80q", strings.Join(wrong, ", "), o.ClusterDomain),
	}

	for _, namespace := range o.GatewayNamespaces {
		wrong := validation.IsDNS1123Label(namespace)
		problems = append(problems, option.Unless(wrong == nil,
			"GatewayNamespaces: %s, have %.80q", strings.Join(wrong, ", "), namespace))
	}
	return errors.Join(problems...)
}

func invalidNames(n names.Names) error {
	err := n.Validate()
	return option.Unless(err == nil, "Names: %w", err)
}

func (o Options) where() string {
	if len(o.GatewayNamespaces) == 0 {
		return "in any namespace"
	}
	return "in " + strings.Join(o.GatewayNamespaces, ", ")
}

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
	defer func() { failed = option.Unless(failed == nil, "watcher controller: %w", failed) }()

	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return err
	}

	routes := opts.routing()
	kinds := []client.Object{&v1beta2.Watcher{}}
	if routes != nil {
		kinds = append(kinds, routes.route(), routes.gateway())
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
			WatchesRawSource(watches(routes.route(), &handler.EnqueueRequestForObject{}, ownFields(opts.Names))).
			WatchesRawSource(watches(&v1beta2.Watcher{}, handler.EnqueueRequestsFromMapFunc(r.all), changed)).
			WatchesRawSource(source.Kind(gateways, routes.gateway(), handler.EnqueueRequestsFromMapFunc(r.all), changed))
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

func (o Options) routing() routing {
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

// all returns all Watchers. They are few. A change of one, also its end, may free or take a
// manager, and the former labels of a gateway are not known.
func (r *reconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
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
