package watcher

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
)

// selectorOf returns the selector of the gateways. An older definition accepted selectors that are
// empty or invalid.
func selectorOf(s *v1beta2.GatewaySelector) (labels.Selector, error) {
	if len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 {
		return nil, problem(reasonInvalidSelector, "spec.gateway.selector is empty and would select every gateway")
	}
	selector, err := metav1.LabelSelectorAsSelector(labelSelector(s))
	if err != nil {
		return nil, problem(reasonInvalidSelector, "spec.gateway.selector: %v", err)
	}
	return selector, nil
}

func labelSelector(s *v1beta2.GatewaySelector) *metav1.LabelSelector {
	selector := &metav1.LabelSelector{MatchLabels: make(map[string]string)}
	for key, value := range s.MatchLabels {
		selector.MatchLabels[key] = string(value)
	}
	for _, r := range s.MatchExpressions {
		requirement := metav1.LabelSelectorRequirement{Key: r.Key, Operator: r.Operator}
		for _, value := range r.Values {
			requirement.Values = append(requirement.Values, string(value))
		}
		selector.MatchExpressions = append(selector.MatchExpressions, requirement)
	}
	return selector
}
