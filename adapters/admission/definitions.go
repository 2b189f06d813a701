package admission

import (
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

const (
	// definitionsSuffix ends no name of a watch.
	definitionsSuffix = ".definitions.kyma-project.io"
	kindDefinition    = "CustomResourceDefinition"
)

// definitionWebhooks returns one webhook for each manager that watches custom resources, for the
// deletion of their definitions. An API server then deletes all objects of the definition without a
// call of any webhook.
func definitionWebhooks(
	endpoint Endpoint, watches []watch.Watch, opts ConfigurationOptions,
) (all []admissionregistrationv1.ValidatingWebhook) {
	names := make(map[core.Manager][]string)
	for _, w := range watches {
		if strings.Contains(w.Resource.Group, ".") { // The group of a definition has a dot.
			resource, _, _ := strings.Cut(w.Resource.Resource, "/")
			names[w.Manager] = append(names[w.Manager], resource+"."+w.Resource.Group)
		}
	}
	for manager, names := range names {
		all = append(all, definitionWebhook(endpoint, manager, names, opts))
	}
	return all
}

// definitionWebhook compares the name of the stored object, because a request for several objects
// has no name.
func definitionWebhook(
	endpoint Endpoint, manager core.Manager, names []string, opts ConfigurationOptions,
) admissionregistrationv1.ValidatingWebhook {
	slices.Sort(names)
	list := `["` + strings.Join(slices.Compact(names), `", "`) + `"]`
	path := pathOf(manager) + "/" + kindSegment(kindDefinition)
	webhook := emptyWebhook(string(manager)+definitionsSuffix, endpoint, path, opts)
	webhook.Rules = []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Delete},
		Rule: admissionregistrationv1.Rule{
			APIGroups:   []string{"apiextensions.k8s.io"},
			APIVersions: []string{"v1"},
			Resources:   []string{"customresourcedefinitions"},
			Scope:       new(admissionregistrationv1.ClusterScope),
		},
	}}
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
