package watcher

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// httpRoutes is the routing by HTTPRoutes of the Gateway API. The reconciler calls it.
type httpRoutes struct {
	where string // the namespaces of the gateways, for messages
}

func (httpRoutes) kind() string { return "HTTPRoute" }

func (httpRoutes) newGateway() client.Object { return &gatewayv1.Gateway{} }

func (httpRoutes) newRoute() client.Object { return &gatewayv1.HTTPRoute{} }

func (h httpRoutes) buildRoute(
	ctx context.Context, reader client.Reader, selector labels.Selector, w *v1beta2.Watcher, m core.Manager,
) (client.Object, string, error) {
	gateways := &gatewayv1.GatewayList{}
	if err := reader.List(ctx, gateways, client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, "", fmt.Errorf("list Gateways: %w", err)
	}
	if len(gateways.Items) == 0 {
		return nil, "", problem(v1beta2.ReasonGatewayNotFound,
			"no Gateway of the Gateway API, %s, is selected by %s", h.where, selector)
	}

	parents, names := parentsOf(gateways.Items)
	if len(parents) == 0 {
		return nil, "", problem(v1beta2.ReasonGatewayWithoutHosts,
			"the gateways %s, selected by %s, have no listener for HTTP or HTTPS", strings.Join(names, ", "), selector)
	}

	route := &gatewayv1.HTTPRoute{TypeMeta: metav1.TypeMeta{APIVersion: gatewayv1.GroupVersion.String(), Kind: h.kind()}}
	service := w.Spec.ServiceInfo
	rule := gatewayv1.HTTPRouteRule{BackendRefs: []gatewayv1.HTTPBackendRef{backend(service)}}

	for _, prefix := range prefixes(m) {
		rule.Matches = append(rule.Matches, gatewayv1.HTTPRouteMatch{
			Path: &gatewayv1.HTTPPathMatch{Type: new(gatewayv1.PathMatchPathPrefix), Value: &prefix},
		})
	}

	route.Spec.ParentRefs = parents
	route.Spec.Rules = []gatewayv1.HTTPRouteRule{rule}
	return route, fmt.Sprintf("%s to %s/%s:%d",
		strings.Join(names, ", "), service.Namespace, service.Name, service.Port), nil
}

// backend states the defaults of the API server, so that the stored route equals the applied one.
func backend(service v1beta2.Service) gatewayv1.HTTPBackendRef {
	return gatewayv1.HTTPBackendRef{BackendRef: gatewayv1.BackendRef{
		BackendObjectReference: gatewayv1.BackendObjectReference{
			Group:     new(gatewayv1.Group("")),
			Kind:      new(gatewayv1.Kind("Service")),
			Name:      gatewayv1.ObjectName(service.Name),
			Namespace: new(gatewayv1.Namespace(service.Namespace)),
			Port:      new(gatewayv1.PortNumber(service.Port)), //nolint:gosec // It is at most maxPort.
		},
		Weight: new(int32(1)),
	}}
}

// parentsOf returns sorted lists. A route without hosts takes the hosts of its gateways.
func parentsOf(gateways []gatewayv1.Gateway) (parents []gatewayv1.ParentReference, names []string) {
	slices.SortFunc(gateways, func(a, b gatewayv1.Gateway) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	for i := range gateways {
		names = append(names, gateways[i].Namespace+"/"+gateways[i].Name)
		if !slices.ContainsFunc(gateways[i].Spec.Listeners, isHTTP) {
			continue
		}

		parents = append(parents, gatewayv1.ParentReference{
			Group:     new(gatewayv1.Group(gatewayv1.GroupName)),
			Kind:      new(gatewayv1.Kind("Gateway")),
			Namespace: new(gatewayv1.Namespace(gateways[i].Namespace)),
			Name:      gatewayv1.ObjectName(gateways[i].Name),
		})
	}
	return parents, names
}

func isHTTP(l gatewayv1.Listener) bool {
	return l.Protocol == gatewayv1.HTTPProtocolType || l.Protocol == gatewayv1.HTTPSProtocolType
}

func (h httpRoutes) checkRoute(ctx context.Context, reader client.Reader, key client.ObjectKey) error {
	route := &gatewayv1.HTTPRoute{}
	if err := reader.Get(ctx, key, route); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read %s: %w", h.kind(), err)
	}

	accepted := make(map[string]bool)
	for i := range route.Status.Parents {
		name := nameOf(route.Status.Parents[i].ParentRef, route)
		for _, condition := range route.Status.Parents[i].Conditions {
			isAccepted := condition.Type == string(gatewayv1.RouteConditionAccepted)
			switch {
			case condition.ObservedGeneration < route.Generation,
				!isAccepted && condition.Type != string(gatewayv1.RouteConditionResolvedRefs):
			case condition.Status == metav1.ConditionFalse:
				return problem(v1beta2.ReasonRouteRejected, "gateway %s rejects the route: %s: %s", name, condition.Reason, condition.Message)
			case isAccepted && condition.Status == metav1.ConditionTrue:
				accepted[name] = true
			}
		}
	}

	// A route that was just deleted is pending, too.
	var missing []string
	for _, parent := range route.Spec.ParentRefs {
		if name := nameOf(parent, route); !accepted[name] {
			missing = append(missing, name)
		}
	}

	if len(missing) > 0 || len(route.Spec.ParentRefs) == 0 {
		return problem(v1beta2.ReasonRoutePending,
			"the route is applied; waiting for acceptance by the gateways %s", strings.Join(missing, ", "))
	}

	return nil
}

// nameOf uses the namespace of the route for a reference without one.
func nameOf(parent gatewayv1.ParentReference, route *gatewayv1.HTTPRoute) string {
	namespace := route.Namespace
	if parent.Namespace != nil {
		namespace = string(*parent.Namespace)
	}
	return namespace + "/" + string(parent.Name)
}
