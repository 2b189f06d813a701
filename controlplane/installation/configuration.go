package installation

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
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

// renewConfiguration updates the webhooks that the API server has already, and removes the others.
// New webhooks wait until the agent answers. live is the configuration as it was read, nil if there
// was none.
func (i *Installer) renewConfiguration(
	ctx context.Context, in *cluster, live *unstructured.Unstructured, want *wanted,
) (*unstructured.Unstructured, error) {
	if live == nil {
		return nil, nil
	}
	first := want.configuration
	if !want.whole {
		known := webhooksOf(live)
		all := webhooksOf(want.configuration)
		old := slices.DeleteFunc(slices.Clone(all), func(webhook any) bool {
			return !slices.ContainsFunc(known, func(k any) bool { return nameOf(k) == nameOf(webhook) })
		})
		if want.whole = len(old) == len(all); !want.whole {
			first = first.DeepCopy()
			first.Object["webhooks"] = old
			annotate(first, i.key(annotationWhole), "")
		}
	}
	return in.put(ctx, live, first)
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
// Both have all defaults, and lose their timeouts here. The comparisons are few, even if a runtime
// lies.
func missed(live, corrected, ours *unstructured.Unstructured) bool {
	for _, webhook := range slices.Concat(webhooksOf(live), webhooksOf(corrected)) {
		fields, _ := webhook.(map[string]any)
		delete(fields, "timeoutSeconds")
	}
	missing := func(webhook any) bool {
		return !slices.ContainsFunc(webhooksOf(live), func(known any) bool { return reflect.DeepEqual(known, webhook) })
	}
	return len(webhooksOf(corrected)) != len(webhooksOf(ours)) || slices.ContainsFunc(webhooksOf(corrected), missing)
}

// put creates a webhook configuration, or replaces its webhooks. Those that others have added, and
// fields that others have added to ours, are removed: the API server may call no agent because of
// them. live is nil if there is no configuration.
func (c *cluster) put(
	ctx context.Context, live, wanted *unstructured.Unstructured, opts ...client.PatchOption,
) (*unstructured.Unstructured, error) {
	if live == nil {
		return c.tryApply(ctx, wanted)
	}
	next := wanted.DeepCopy()
	if webhooksOf(next) == nil {
		next.Object["webhooks"] = nil // Null removes all.
	}
	err := c.Patch(ctx, next, client.Merge, append(opts, client.FieldOwner(fieldOwner))...)
	return next, c.wrap(err, "patch "+wanted.GetKind(), wanted.GetName())
}
