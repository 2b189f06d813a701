package installation

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/admission/selector"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// configuration returns the webhook configuration of a runtime. A namespace that this package has
// not made may hold objects to watch, so it is not excluded.
func (i *Installer) configuration(
	r *Runtime, ownNamespace bool,
) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	opts := i.opts.Webhooks
	opts.ExcludedNamespaces = i.excludedNamespaces(ownNamespace)
	bundle, err := r.bundle()
	if err != nil {
		return nil, fmt.Errorf("installation: runtime %q: %w", r.ID, err)
	}
	configuration, err := admission.WebhookConfiguration(i.opts.ConfigurationName, admission.Endpoint{
		Service:  types.NamespacedName{Namespace: i.opts.Namespace, Name: i.opts.Name},
		CABundle: bundle,
	}, r.Watches, opts)
	return configuration, option.Unless(err == nil, "installation: runtime %q: %w", r.ID, err)
}

func (i *Installer) excludedNamespaces(ownNamespace bool) []string {
	switch excluded := i.opts.Webhooks.ExcludedNamespaces; {
	case excluded != nil:
		return excluded
	case ownNamespace:
		return []string{metav1.NamespaceSystem, i.opts.Namespace}
	default:
		return []string{metav1.NamespaceSystem}
	}
}

// annotationWhole is on a configuration with all webhooks, and changes with them.
const annotationWhole = "whole"

// compareConfiguration keeps the additions of a platform to the webhooks, and finds out whether
// others have changed them otherwise.
func (v *visit) compareConfiguration(ctx context.Context) error {
	want, live := v.want, v.found.configuration
	// If the last complete installation had the same configuration, and the present one differs,
	// then others have replaced it, as by an older copy with the annotation of its time.
	intact := v.last.whole == want.seen.whole
	if !intact {
		v.records.Delete(v.id)
	}
	if live == nil || v.opts.Informer {
		return nil
	}

	if err := v.keepAdditions(ctx); err != nil {
		return err
	}
	want.whole = intact || live.GetAnnotations()[v.key(annotationWhole)] == want.seen.whole
	if !want.whole {
		return nil
	}
	corrected, err := v.putConfiguration(ctx, live, want.configuration, client.DryRunAll)
	if err != nil {
		return err
	}
	want.missed = missed(live, corrected, want.configuration)
	want.unchanged = !want.missed && hasMetadata(live, want.configuration) && sameWebhooks(live, corrected)
	return nil
}

// renewConfiguration updates the webhooks that the API server has already, and removes the others.
// New webhooks wait until the agent answers. It returns nil if there is no configuration.
func (v *visit) renewConfiguration(ctx context.Context) (*unstructured.Unstructured, error) {
	want, live := v.want, v.found.configuration
	if live == nil || want.unchanged {
		return live, nil
	}

	first := want.configuration
	if !want.whole {
		known := webhooksOf(live)
		all := webhooksOf(want.configuration)
		old := slices.DeleteFunc(slices.Clone(all), func(webhook any) bool {
			return !slices.ContainsFunc(known, func(k any) bool { return nameOf(k) == nameOf(webhook) })
		})
		want.whole = len(old) == len(all)
		if !want.whole {
			first = first.DeepCopy()
			first.Object["webhooks"] = old
			annotate(first, v.key(annotationWhole), "")
			annotate(first, admission.RecordAnnotation, recordOf(first))
		}
	}
	renewed, err := v.putConfiguration(ctx, live, first)
	if err == nil && want.removed != "" {
		v.contests.Store(v.id, want.removed)
	}
	return renewed, err
}

// recordOf returns the record of the webhooks that a configuration has now, "" if they are none of
// k8s.io/api.
func recordOf(configuration *unstructured.Unstructured) string {
	var typed admissionregistrationv1.ValidatingWebhookConfiguration
	if runtime.DefaultUnstructuredConverter.FromUnstructured(configuration.Object, &typed) != nil {
		return ""
	}
	return admission.Record(typed.Webhooks)
}

func webhooksOf(configuration *unstructured.Unstructured) []any {
	webhooks, _ := configuration.Object["webhooks"].([]any)
	return webhooks
}

func nameOf(webhook any) any {
	fields, _ := webhook.(map[string]any)
	return fields["name"]
}

// missed reports whether others have changed one of our webhooks, so that an API server may not
// have called the agents. A timeout loses no call. corrected is the answer to a dry run with ours.
// Both have all defaults.
func missed(live, corrected, ours *unstructured.Unstructured) bool {
	have := make(map[[sha256.Size]byte]bool)
	for _, webhook := range webhooksOf(live) {
		have[callsOf(webhook)] = true
	}
	isMissing := func(webhook any) bool { return !have[callsOf(webhook)] }
	return len(webhooksOf(corrected)) != len(webhooksOf(ours)) || slices.ContainsFunc(webhooksOf(corrected), isMissing)
}

// callsOf is the same for two webhooks that an API server calls in the same cases.
func callsOf(webhook any) [sha256.Size]byte {
	fields, ok := webhook.(map[string]any)
	if !ok {
		return sumOf(webhook)
	}
	calls := maps.Clone(fields)
	delete(calls, "timeoutSeconds")
	for _, name := range []string{"namespaceSelector", "objectSelector"} {
		if meaning, known := selector.Meaning(selectorOf(fields[name])); known {
			calls[name] = meaning
		}
	}
	calls["rules"] = sortedRules(fields["rules"])
	calls["matchConditions"] = sortedSums(fields["matchConditions"])
	return sumOf(calls)
}

// sortedRules has the sums of all rules. Neither the order of rules nor that of their lists
// matters.
func sortedRules(rules any) any {
	all, _ := rules.([]any)
	sorted := make([]any, 0, len(all))
	for _, rule := range all {
		fields, ok := rule.(map[string]any)
		if !ok {
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
	all, ok := list.([]any)
	if !ok {
		return list
	}
	sums := make([]string, len(all))
	for n, element := range all {
		sums[n] = shortSum(sumOf(element))
	}
	slices.Sort(sums)
	return slices.Compact(sums)
}

func sameWebhooks(live, corrected *unstructured.Unstructured) bool {
	calls := func(configuration *unstructured.Unstructured) (all []string) {
		for _, webhook := range webhooksOf(configuration) {
			fields, _ := webhook.(map[string]any)
			all = append(all, shortSum(callsOf(webhook))+fmt.Sprint(" ", fields["timeoutSeconds"]))
		}
		slices.Sort(all)
		return all
	}
	return slices.Equal(calls(live), calls(corrected))
}

func hasMetadata(live, want *unstructured.Unstructured) bool {
	contains := func(have, want map[string]string) bool {
		for name, value := range want {
			if found, ok := have[name]; !ok || found != value {
				return false
			}
		}
		return true
	}
	return contains(live.GetLabels(), want.GetLabels()) && contains(live.GetAnnotations(), want.GetAnnotations())
}

// putConfiguration creates a webhook configuration, or replaces its webhooks. Those that others
// have added, and fields that others have added to ours, are removed: the API server may call no
// agent because of them. live is nil if there is no configuration.
func (v *visit) putConfiguration(
	ctx context.Context, live, wanted *unstructured.Unstructured, opts ...client.PatchOption,
) (*unstructured.Unstructured, error) {
	next := wanted.DeepCopy()
	if live == nil {
		// Create, not apply: an apply would take over a configuration that appeared since the
		// read.
		err := v.Create(ctx, next, client.FieldOwner(fieldOwner))
		return next, v.wrap(err, "create "+wanted.GetKind(), wanted.GetName())
	}
	if webhooksOf(next) == nil {
		next.Object["webhooks"] = nil // Null removes all.
	}
	// An API server refuses another UID.
	next.SetUID(types.UID(remote.Token(string(live.GetUID()))))
	err := v.Patch(ctx, next, client.Merge, append(opts, client.FieldOwner(fieldOwner))...)
	return next, v.wrap(err, "patch "+wanted.GetKind(), wanted.GetName())
}
