package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
)

func (r *registration) newWebhooks() []admissionregistrationv1.ValidatingWebhook {
	own := r.newWebhook(r.watchedTarget(), watchLabel)
	if r.watchedTarget().subresource != "" || !mayScale(r.groupResource()) { // Scale writes the spec.
		return []admissionregistrationv1.ValidatingWebhook{own}
	}

	scale := r.newWebhook(target{r.Resource.Resource, subresourceScale}, scaleLabel)
	// A Scale has no labels, so a selector would match none.
	scale.ObjectSelector = &metav1.LabelSelector{}
	return []admissionregistrationv1.ValidatingWebhook{own, scale}
}

// newWebhook has a name that is unique for each watch, because a namespace has no dot.
func (r *registration) newWebhook(target target, label string) admissionregistrationv1.ValidatingWebhook {
	webhook := r.emptyWebhook(r.Name.Namespace+"."+r.Name.Name+r.opts.nameSuffix(label), r.webhookPath(target))
	webhook.Rules = r.newRules(target)
	webhook.NamespaceSelector = r.namespaceSelector()
	webhook.ObjectSelector = labelSelector(r.Selector)
	webhook.MatchConditions = r.matchConditions(target)

	return webhook
}

// emptyWebhook sets all defaults of an API server, so that the stored object equals it.
func (b *builder) emptyWebhook(name, path string) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		Name:         name,
		ClientConfig: b.endpoint.clientConfig(path),
		// Ignore: a write must not fail because the agent is not available.
		FailurePolicy:           new(admissionregistrationv1.Ignore),
		MatchPolicy:             new(admissionregistrationv1.Equivalent),
		NamespaceSelector:       &metav1.LabelSelector{},
		ObjectSelector:          &metav1.LabelSelector{},
		SideEffects:             new(admissionregistrationv1.SideEffectClassNoneOnDryRun),
		TimeoutSeconds:          new(int32(b.opts.Timeout / time.Second)), //nolint:gosec // Validated: at most 30.
		AdmissionReviewVersions: []string{"v1"},
	}
}

func (r *registration) namespaceSelector() *metav1.LabelSelector {
	joined := labelSelector(r.NamespaceSelector)
	joined.MatchExpressions = append(joined.MatchExpressions, r.opts.namespaceSelector().MatchExpressions...)
	return joined
}

func labelSelector(of watch.Selector) *metav1.LabelSelector {
	selector := &metav1.LabelSelector{MatchLabels: maps.Clone(of.Labels)}
	for _, r := range of.Requirements {
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: r.Key, Operator: metav1.LabelSelectorOperator(r.Operator), Values: slices.Clone(r.Values),
		})
	}
	return selector
}

// newRules match all versions that the watch names, in all scopes. For a custom resource, which has
// a dot in its group, these are all versions. For one version an API server would convert each
// object. A write fails with its conversion, also with the failure policy Ignore. Conditions of a
// watch are written for the version that it names.
func (r *registration) newRules(target target) []admissionregistrationv1.RuleWithOperations {
	version := r.Resource.Version
	if strings.Contains(r.Resource.Group, ".") && len(r.Conditions) == 0 {
		version = watch.AnyVersion
	}
	return rules(r.Resource.Group, version, target.String(), admissionregistrationv1.AllScopes, target.operations()...)
}

func rules(
	group, version, resource string,
	scope admissionregistrationv1.ScopeType, operations ...admissionregistrationv1.OperationType,
) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: operations,
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource}, Scope: &scope,
		},
	}}
}

// The labels before the domain in the names of webhooks. They differ, so that a watch named like
// another one and its label gets no webhook of the other one. Only the label of definitions is
// longer than the label of a watch. The names of webhooks for definitions contain only a manager.
const (
	watchLabel       = "operator"
	scaleLabel       = "scale"
	definitionsLabel = "definitions"
)

func (o ConfigurationOptions) nameSuffix(label string) string {
	return "." + label + "." + o.WebhookDomain
}

const kindDefinition = "CustomResourceDefinition"

// definitionWebhooks returns one webhook for each manager that watches custom resources, for the
// deletion of their definitions. An API server then deletes all objects of the definition without a
// call of any webhook.
func (b *builder) definitionWebhooks(watches []watch.Watch) (all []admissionregistrationv1.ValidatingWebhook) {
	names := make(map[core.Manager][]string)
	for _, w := range watches {
		if strings.Contains(w.Resource.Group, ".") { // The group of a definition has a dot.
			resource, _, _ := strings.Cut(w.Resource.Resource, "/")
			names[w.Manager] = append(names[w.Manager], resource+"."+w.Resource.Group)
		}
	}

	for manager, names := range names {
		all = append(all, b.definitionWebhook(manager, names))
	}
	return all
}

// definitionWebhook compares the name of the stored object, because a request for several objects
// has no name.
func (b *builder) definitionWebhook(
	manager core.Manager, names []string,
) admissionregistrationv1.ValidatingWebhook {
	slices.Sort(names)
	list := `["` + strings.Join(slices.Compact(names), `", "`) + `"]`
	name := string(manager) + b.opts.nameSuffix(definitionsLabel)
	webhook := b.emptyWebhook(name, pathOf(manager)+"/"+kindSegment(kindDefinition))
	webhook.Rules = rules("apiextensions.k8s.io", "v1", "customresourcedefinitions",
		admissionregistrationv1.ClusterScope, admissionregistrationv1.Delete)
	webhook.MatchConditions = []admissionregistrationv1.MatchCondition{{
		Name: "watched", Expression: "oldObject == null || oldObject.metadata.name in " + list,
	}}

	return webhook
}

// deletesDefinition reports whether the review is of a [definitionWebhook]: only its path names a
// kind for a review without subresource.
func (q *request) deletesDefinition(parent string) bool {
	return parent == kindDefinition && q.subresource == "" && q.operation == core.OperationDelete
}

// canaryName has no dot, as the name of each watch has, so the names of webhooks never collide.
const canaryName = "canary"

// canaryWebhook calls the agent for writes to one Lease. The condition compares the name in the
// request, because its evaluation never fails. An object selector could be changed by others.
func (b *builder) canaryWebhook() admissionregistrationv1.ValidatingWebhook {
	webhook := b.emptyWebhook(canaryName+b.opts.nameSuffix(watchLabel), canary.Path)
	webhook.Rules = rules("coordination.k8s.io", "v1", "leases", admissionregistrationv1.NamespacedScope,
		admissionregistrationv1.Create, admissionregistrationv1.Update)
	webhook.NamespaceSelector = &metav1.LabelSelector{
		MatchLabels: map[string]string{namespaceLabel: b.opts.Canary.Namespace},
	}
	webhook.SideEffects = new(admissionregistrationv1.SideEffectClassNone)
	webhook.MatchConditions = []admissionregistrationv1.MatchCondition{{
		Name: "lease", Expression: fmt.Sprintf("request.name == %q", b.opts.Canary.Name),
	}}

	return webhook
}
