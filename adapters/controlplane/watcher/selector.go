package watcher

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/api/v1beta2"
)

// selectorOf returns the selector of the gateways. An older definition accepted selectors that are
// empty or invalid.
func selectorOf(s *v1beta2.GatewaySelector) (labels.Selector, error) {
	if len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 {
		return nil, problem(reasonInvalidSelector, "spec.gateway.selector is empty and would select every gateway")
	}

	standard := &metav1.LabelSelector{MatchLabels: plain(s.MatchLabels)}

	for _, r := range s.MatchExpressions {
		values := make([]string, len(r.Values))
		for i, value := range r.Values {
			values[i] = string(value)
		}

		standard.MatchExpressions = append(standard.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: r.Key, Operator: r.Operator, Values: values})
	}

	selector, err := metav1.LabelSelectorAsSelector(standard)
	if err != nil {
		return nil, problem(reasonInvalidSelector, "spec.gateway.selector: %v", err)
	}

	return selector, nil
}
