package installation

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/admission/selector"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/internal/submap"
)

// This file compares webhook configurations. One of them may be by others, so it may have any JSON.

func webhooksOf(configuration *unstructured.Unstructured) []any {
	webhooks, _ := configuration.Object["webhooks"].([]any)
	return webhooks
}

// nameOf returns "" for a webhook without a name.
func nameOf(webhook any) string {
	fields, _ := webhook.(map[string]any)
	name, _ := fields["name"].(string)
	return name
}

// selectorOf returns nil for any other value.
func selectorOf(fields any) *metav1.LabelSelector {
	parsed := &metav1.LabelSelector{}
	object, _ := fields.(map[string]any)
	if runtime.DefaultUnstructuredConverter.FromUnstructured(object, parsed) != nil {
		return nil
	}
	return parsed
}

// recordOf returns the record of the webhooks that a configuration has now, "" if they do not fit
// the type in k8s.io/api.
func recordOf(configuration *unstructured.Unstructured) string {
	var typed admissionregistrationv1.ValidatingWebhookConfiguration
	if runtime.DefaultUnstructuredConverter.FromUnstructured(configuration.Object, &typed) != nil {
		return ""
	}
	return admission.Record(typed.Webhooks)
}

// presentIn returns the webhooks that a configuration also contains, by their names.
func presentIn(live *unstructured.Unstructured, webhooks []any) []any {
	present := make([]any, 0, len(webhooks)) // An empty list removes all webhooks.
	for _, webhook := range webhooks {
		hasName := func(other any) bool { return nameOf(other) == nameOf(webhook) }
		if slices.ContainsFunc(webhooksOf(live), hasName) {
			present = append(present, webhook)
		}
	}
	return present
}

// missedCalls reports whether others have changed one of our webhooks, so that an API server may
// not have called the agents. A timeout loses no call. corrected is the answer to a dry run with
// ours. Both have all defaults.
func missedCalls(live, corrected, ours *unstructured.Unstructured) bool {
	have := make(map[[sha256.Size]byte]bool)
	for _, webhook := range webhooksOf(live) {
		have[callsOf(webhook)] = true
	}

	isMissing := func(webhook any) bool { return !have[callsOf(webhook)] }
	return len(webhooksOf(corrected)) != len(webhooksOf(ours)) || slices.ContainsFunc(webhooksOf(corrected), isMissing)
}

// callsOf is the same for two webhooks that an API server calls in the same cases.
func callsOf(webhook any) [sha256.Size]byte {
	fields, isObject := webhook.(map[string]any)
	if !isObject {
		return sumOf(webhook)
	}

	calls := maps.Clone(fields)
	delete(calls, "timeoutSeconds")
	for _, name := range []string{"namespaceSelector", "objectSelector"} {
		meaning, isKnown := selector.Meaning(selectorOf(fields[name]))
		if isKnown {
			calls[name] = meaning
		}
	}
	calls["rules"] = sortedRules(fields["rules"])
	calls["matchConditions"] = sortedSums(fields["matchConditions"])
	return sumOf(calls)
}

// sortedRules has the sums of all rules. Neither the order of rules nor the order of their lists
// matters.
func sortedRules(rules any) any {
	all, _ := rules.([]any)
	sorted := make([]any, 0, len(all))
	for _, rule := range all {
		fields, isObject := rule.(map[string]any)
		if !isObject {
			return rules
		}

		own := maps.Clone(fields)
		for _, name := range []string{"apiGroups", "apiVersions", "operations", "resources"} {
			own[name] = sortedSums(fields[name])
		}
		sorted = append(sorted, own)
	}
	return sortedSums(sorted)
}

// sortedSums identifies the elements of a list, each once.
func sortedSums(list any) any {
	all, isList := list.([]any)
	if !isList {
		return list
	}

	sums := make([]string, len(all))
	for n, element := range all {
		sums[n] = shortSum(sumOf(element))
	}
	slices.Sort(sums)
	return slices.Compact(sums)
}

// sameWebhooks reports whether two configurations have the same calls and timeouts.
func sameWebhooks(live, corrected *unstructured.Unstructured) bool {
	return slices.Equal(callsAndTimeouts(live), callsAndTimeouts(corrected))
}

func callsAndTimeouts(configuration *unstructured.Unstructured) (all []string) {
	for _, webhook := range webhooksOf(configuration) {
		fields, _ := webhook.(map[string]any)
		all = append(all, shortSum(callsOf(webhook))+fmt.Sprint(" ", fields["timeoutSeconds"]))
	}
	slices.Sort(all)
	return all
}

// hasMetadata reports whether an object has the labels and annotations of another one, and maybe
// more.
func hasMetadata(live, want *unstructured.Unstructured) bool {
	return submap.Contains(live.GetLabels(), want.GetLabels()) &&
		submap.Contains(live.GetAnnotations(), want.GetAnnotations())
}

// managerOf returns the field manager that has set the namespace selector of a webhook last,
// except ours.
func managerOf(live *unstructured.Unstructured, webhook string) string {
	name, _ := json.Marshal(map[string]string{"name": webhook}) //nolint:errchkjson // A text, as in managedFields.
	key := "k:" + string(name)

	for _, entry := range slices.Backward(live.GetManagedFields()) {
		if entry.Manager == fieldOwner || entry.FieldsV1 == nil {
			continue
		}

		var fields struct {
			Webhooks map[string]map[string]json.RawMessage `json:"f:webhooks"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, isSet := fields.Webhooks[key]["f:namespaceSelector"]; isSet {
			return remote.Token(entry.Manager)
		}
	}
	return "unknown"
}
