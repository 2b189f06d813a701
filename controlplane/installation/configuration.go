package installation

import (
	"context"
	"log/slog"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// configuration returns the webhook configuration of a runtime. A namespace that this package has
// not made may hold objects to watch, so it is not excluded.
func (i *Installer) configuration(
	r *Runtime, ownNamespace bool,
) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	opts := i.opts.Webhooks
	opts.ExcludedNamespaces = i.excludedNamespaces(ownNamespace)
	configuration, err := admission.WebhookConfiguration(i.opts.ConfigurationName, admission.Endpoint{
		Service:  types.NamespacedName{Namespace: i.opts.Namespace, Name: i.opts.Name},
		CABundle: r.Secret[material.CA],
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

// renewal is a webhook configuration after its first step.
type renewal struct {
	former   []core.Manager             // that no webhook names any more
	complete bool                       // no new webhook waits
	live     *unstructured.Unstructured // nil if there is none
}

// renewConfiguration updates the webhooks that the API server has already, and removes the others.
// New webhooks wait until the agent answers. live is the configuration as it was read, nil if there
// was none.
func (i *Installer) renewConfiguration(
	ctx context.Context, in *cluster, live *unstructured.Unstructured, want *wanted,
) (renewal, error) {
	if live == nil {
		return renewal{}, nil
	}
	stored, err := in.webhooks(live)
	if err != nil {
		return renewal{}, err
	}
	known, elsewhere := make(map[string]bool, len(stored)), ""
	for n := range stored {
		known[stored[n].Name] = true
		if service := stored[n].ClientConfig.Service; service != nil && service.Namespace != i.opts.Namespace {
			elsewhere = service.Namespace
		}
	}
	if elsewhere != "" {
		in.log.WarnContext(ctx, "webhooks called a Service in another namespace, where the objects of a former agent stay",
			slog.String("namespace", elsewhere))
	}
	isNew := func(webhook admissionregistrationv1.ValidatingWebhook) bool { return !known[webhook.Name] }
	first, complete := want.whole, wasWhole(live, want) || !slices.ContainsFunc(want.configuration.Webhooks, isNew)
	if !complete {
		narrowed := *want.configuration
		narrowed.Webhooks = slices.DeleteFunc(slices.Clone(narrowed.Webhooks), isNew)
		first = i.finishedOf(&narrowed)
	}
	renewed, err := in.apply(ctx, first)
	if err == nil {
		err = in.restoreConditions(ctx, renewed, want.whole)
	}
	if err != nil {
		return renewal{}, err
	}
	// Webhooks that others have added by hand are still there.
	left, err := in.webhooks(renewed)
	former := without(without(managersCalled(stored), managersCalled(want.configuration.Webhooks)), managersCalled(left))
	return renewal{former: former, complete: complete, live: renewed}, err
}

// annotationWhole is on a configuration with all webhooks, and changes with them.
const annotationWhole = "operator.kyma-project.io/whole"

func wasWhole(live *unstructured.Unstructured, want *wanted) bool {
	return want.intact || live.GetAnnotations()[annotationWhole] == want.digest.whole
}

// missed returns the managers of webhooks that others have removed or changed, so that the API
// server may not have called the agent. live is the configuration as it was read, nil if there was
// none. Without any, the canary notices it.
func (i *Installer) missed(in *cluster, live *unstructured.Unstructured, want *wanted) ([]core.Manager, error) {
	if live == nil || want.whole == nil || !wasWhole(live, want) {
		return nil, nil
	}
	stored, err := in.webhooks(live)
	if err != nil {
		return nil, err
	}
	wanted, err := in.webhooks(want.whole)
	return managersCalled(slices.DeleteFunc(wanted, func(webhook admissionregistrationv1.ValidatingWebhook) bool {
		return slices.ContainsFunc(stored, func(s admissionregistrationv1.ValidatingWebhook) bool { return callsAs(&s, &webhook) })
	})), err
}

// restoreConditions removes the conditions that others have added to webhooks of ours, as an apply
// leaves them. For writes that they exclude, an API server would call no agent, and the canary
// would not notice.
func (c *cluster) restoreConditions(ctx context.Context, live, wanted *unstructured.Unstructured) error {
	const field = "matchConditions"
	before, conditions := live.DeepCopy(), map[any]any{}
	eachWebhook(wanted, func(webhook map[string]any) { conditions[webhook["name"]] = webhook[field] })
	eachWebhook(live, func(webhook map[string]any) {
		if ours, known := conditions[webhook["name"]]; known && ours != nil {
			webhook[field] = ours
		} else if known {
			delete(webhook, field)
		}
	})
	if equality.Semantic.DeepEqual(before, live) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	return c.wrap(c.Patch(ctx, live, patch, client.FieldOwner(fieldOwner)), "patch "+live.GetKind(), live.GetName())
}

func eachWebhook(configuration *unstructured.Unstructured, do func(webhook map[string]any)) {
	all, _ := configuration.Object["webhooks"].([]any)
	for _, one := range all {
		if webhook, ok := one.(map[string]any); ok {
			do(webhook)
		}
	}
}

// callsAs reports whether an API server calls a stored webhook as often as another one. It may have
// set defaults.
func callsAs(stored, wanted *admissionregistrationv1.ValidatingWebhook) bool {
	same, covers := equality.Semantic.DeepEqual, equality.Semantic.DeepDerivative
	return stored.Name == wanted.Name && covers(wanted.ClientConfig, stored.ClientConfig) &&
		covers(wanted.Rules, stored.Rules) && covers(wanted.MatchPolicy, stored.MatchPolicy) &&
		same(wanted.NamespaceSelector, stored.NamespaceSelector) && same(wanted.ObjectSelector, stored.ObjectSelector) &&
		len(wanted.MatchConditions) == len(stored.MatchConditions) &&
		!slices.ContainsFunc(wanted.MatchConditions, func(c admissionregistrationv1.MatchCondition) bool {
			return !slices.Contains(stored.MatchConditions, c)
		})
}

func (c *cluster) webhooks(
	configuration *unstructured.Unstructured,
) ([]admissionregistrationv1.ValidatingWebhook, error) {
	var stored admissionregistrationv1.ValidatingWebhookConfiguration
	err := c.decode(configuration, &stored)
	return stored.Webhooks, err
}

func managersCalled(webhooks []admissionregistrationv1.ValidatingWebhook) []core.Manager {
	return remote.Managers(func(yield func(string) bool) {
		for n := range webhooks {
			service := webhooks[n].ClientConfig.Service
			if service == nil || service.Path == nil {
				continue
			}
			if manager, ok := admission.ManagerOf(*service.Path); ok && !yield(string(manager)) {
				return
			}
		}
	})
}

func without(managers, others []core.Manager) []core.Manager {
	return slices.DeleteFunc(managers, func(m core.Manager) bool { return slices.Contains(others, m) })
}
