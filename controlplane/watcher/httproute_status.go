package watcher

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// check reads the conditions that the controllers of the gateways have written for each parent of
// the route.
func (h httpRoutes) check(ctx context.Context, reader client.Reader, key client.ObjectKey) error {
	route := &gatewayv1.HTTPRoute{}
	if err := reader.Get(ctx, key, route); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read %s: %w", h.kind(), err)
	}
	accepted := make(map[string]bool)
	for i := range route.Status.Parents {
		parent := &route.Status.Parents[i]
		if condition := rejection(parent.Conditions, route.Generation); condition != nil {
			return problem(reasonRouteRejected, "gateway %s rejects the route: %s: %s",
				nameOf(parent.ParentRef, route), condition.Reason, condition.Message)
		}
		if isTrue(parent.Conditions, gatewayv1.RouteConditionAccepted, route.Generation) {
			accepted[nameOf(parent.ParentRef, route)] = true
		}
	}
	return pending(route, accepted)
}

// pending names the gateways that have not accepted the route yet. A route that was just deleted is
// pending, too.
func pending(route *gatewayv1.HTTPRoute, accepted map[string]bool) error {
	var missing []string
	for _, parent := range route.Spec.ParentRefs {
		if name := nameOf(parent, route); !accepted[name] {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 || len(route.Spec.ParentRefs) == 0 {
		return problem(reasonRoutePending,
			"the route is applied; waiting for acceptance by the gateways %s", strings.Join(missing, ", "))
	}
	return nil
}

// rejection returns a condition that says so for the current generation, nil if there is none.
func rejection(conditions []metav1.Condition, generation int64) *metav1.Condition {
	kinds := []gatewayv1.RouteConditionType{gatewayv1.RouteConditionAccepted, gatewayv1.RouteConditionResolvedRefs}
	for _, kind := range kinds {
		condition := meta.FindStatusCondition(conditions, string(kind))
		if condition != nil && condition.Status == metav1.ConditionFalse && condition.ObservedGeneration >= generation {
			return condition
		}
	}
	return nil
}

func isTrue(conditions []metav1.Condition, kind gatewayv1.RouteConditionType, generation int64) bool {
	condition := meta.FindStatusCondition(conditions, string(kind))
	return condition != nil && condition.Status == metav1.ConditionTrue && condition.ObservedGeneration >= generation
}

// nameOf returns <namespace>/<name>. A reference without namespace means the namespace of the
// route.
func nameOf(parent gatewayv1.ParentReference, route *gatewayv1.HTTPRoute) string {
	namespace := route.Namespace
	if parent.Namespace != nil {
		namespace = string(*parent.Namespace)
	}
	return namespace + "/" + string(parent.Name)
}
