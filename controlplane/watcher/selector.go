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

	selector, err := metav1.LabelSelectorAsSelector(labelSelector(s.MatchLabels, s.MatchExpressions))
	if err != nil {
		return nil, problem(reasonInvalidSelector, "spec.gateway.selector: %v", err)
	}

	return selector, nil
}
