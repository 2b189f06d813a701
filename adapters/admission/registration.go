package admission

import (
	"maps"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// registration makes the webhooks of one watch.
type registration struct {
	*watch.Watch

	endpoint Endpoint
	opts     ConfigurationOptions
}

// webhooks returns the webhook of the watch, and that of scale if the watch includes it.
func (r *registration) webhooks() []admissionregistrationv1.ValidatingWebhook {
	own := r.webhook(r.target(), webhookSuffix)
	if !r.includesScale() {
		return []admissionregistrationv1.ValidatingWebhook{own}
	}
	scale := r.webhook(target{r.Resource.Resource, subresourceScale}, scaleSuffix)
	// A Scale has no labels, so a selector would match none.
	scale.ObjectSelector = &metav1.LabelSelector{}
	return []admissionregistrationv1.ValidatingWebhook{own, scale}
}

// webhook has a name that is unique for each watch, because a namespace has no dot.
func (r *registration) webhook(target target, suffix string) admissionregistrationv1.ValidatingWebhook {
	webhook := emptyWebhook(r.Name.Namespace+"."+r.Name.Name+suffix, r.endpoint, r.path(target), r.opts)
	webhook.Rules = []admissionregistrationv1.RuleWithOperations{r.rule(target)}
	webhook.NamespaceSelector = r.namespaceSelector()
	webhook.ObjectSelector = labelSelector(r.Selector)
	webhook.MatchConditions = r.matchConditions(target)
	return webhook
}

// emptyWebhook returns a webhook without rules. It sets all defaults that an API server would set,
// so that the stored object equals it.
func emptyWebhook(
	name string, endpoint Endpoint, path string, opts ConfigurationOptions,
) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		Name:         name,
		ClientConfig: endpoint.clientConfig(path),
		// Ignore: a write must not fail because the agent is not available.
		FailurePolicy:           new(admissionregistrationv1.Ignore),
		MatchPolicy:             new(admissionregistrationv1.Equivalent),
		NamespaceSelector:       &metav1.LabelSelector{},
		ObjectSelector:          &metav1.LabelSelector{},
		SideEffects:             new(admissionregistrationv1.SideEffectClassNoneOnDryRun),
		TimeoutSeconds:          new(int32(opts.Timeout / time.Second)), //nolint:gosec // Validated: at most 30.
		AdmissionReviewVersions: []string{"v1"},
	}
}

// namespaceSelector joins the selector of the watch and that of the configuration.
func (r *registration) namespaceSelector() *metav1.LabelSelector {
	joined := labelSelector(r.NamespaceSelector)
	joined.MatchExpressions = append(joined.MatchExpressions, r.opts.namespaceSelector().MatchExpressions...)
	return joined
}

// labelSelector copies the selector.
func labelSelector(of watch.Selector) *metav1.LabelSelector {
	selector := &metav1.LabelSelector{MatchLabels: maps.Clone(of.Labels)}
	for _, r := range of.Requirements {
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: r.Key, Operator: metav1.LabelSelectorOperator(r.Operator), Values: slices.Clone(r.Values),
		})
	}
	return selector
}

// rule matches all versions that the watch names, in all scopes. For a custom resource, which has a
// dot in its group, these are all versions. For one version an API server would convert each
// object. A write fails with its conversion, also with the failure policy Ignore. Conditions of a
// watch are written for the version that it names.
func (r *registration) rule(target target) admissionregistrationv1.RuleWithOperations {
	version := r.Resource.Version
	if strings.Contains(r.Resource.Group, ".") && len(r.Conditions) == 0 {
		version = watch.AnyVersion
	}
	return admissionregistrationv1.RuleWithOperations{
		Operations: target.operations(),
		Rule: admissionregistrationv1.Rule{
			APIGroups:   []string{r.Resource.Group},
			APIVersions: []string{version},
			Resources:   []string{target.String()},
			Scope:       new(admissionregistrationv1.AllScopes),
		},
	}
}
