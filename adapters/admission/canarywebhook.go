package admission

import (
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/internal/canary"
)

const (
	// canaryName is shorter than the name of any webhook of a watch, so the names never collide.
	canaryName = "canary" + webhookSuffix
	// namespaceLabel is on every namespace, with its name (k8s.io/api/core/v1).
	namespaceLabel = "kubernetes.io/metadata.name"
)

// canaryWebhook calls the agent for writes to one Lease. The condition compares the name in the
// request, because its evaluation never fails. An object selector could be changed by others.
func canaryWebhook(endpoint Endpoint, opts ConfigurationOptions) admissionregistrationv1.ValidatingWebhook {
	webhook := emptyWebhook(canaryName, endpoint, canary.Path, opts)
	webhook.Rules = []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{
			admissionregistrationv1.Create, admissionregistrationv1.Update,
		},
		Rule: admissionregistrationv1.Rule{
			APIGroups:   []string{"coordination.k8s.io"},
			APIVersions: []string{"v1"},
			Resources:   []string{"leases"},
			Scope:       new(admissionregistrationv1.NamespacedScope),
		},
	}}
	webhook.NamespaceSelector = &metav1.LabelSelector{
		MatchLabels: map[string]string{namespaceLabel: opts.Canary.Namespace},
	}
	webhook.SideEffects = new(admissionregistrationv1.SideEffectClassNone)
	webhook.MatchConditions = []admissionregistrationv1.MatchCondition{{
		Name: "lease", Expression: fmt.Sprintf("request.name == %q", opts.Canary.Name),
	}}
	return webhook
}

// canaryProblem returns an error for an invalid name, and nil without a canary.
func canaryProblem(lease types.NamespacedName) error {
	if lease == (types.NamespacedName{}) {
		return nil
	}
	return errors.Join(
		invalid(validation.IsDNS1123Label(lease.Namespace), "canary: namespace %.80q", lease.Namespace),
		invalid(validation.IsDNS1123Subdomain(lease.Name), "canary: name %.80q", lease.Name))
}
