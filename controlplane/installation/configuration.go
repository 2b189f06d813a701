package installation

import (
	"context"
	"fmt"
	"maps"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// configuration returns the webhook configuration of a runtime. A namespace that this package has
// not made may hold objects to watch, so it is not excluded.
func (i *Installer) configuration(
	r *Runtime, ownNamespace bool,
) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	opts := i.opts.Webhooks
	opts.Labels = maps.Clone(opts.Labels)
	if opts.Labels == nil {
		opts.Labels = i.labels()
	}
	opts.ExcludedNamespaces = i.excludedNamespaces(ownNamespace)
	configuration, err := admission.WebhookConfiguration(i.opts.ConfigurationName, admission.Endpoint{
		Service:  types.NamespacedName{Namespace: i.opts.Namespace, Name: i.opts.Name},
		CABundle: r.Secret[material.CA],
	}, r.Watches, opts)
	if err != nil {
		return nil, fmt.Errorf("installation: runtime %q: %w", r.ID, err)
	}
	return configuration, nil
}

// excludedNamespaces returns the namespaces in which nothing is watched.
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
	ctx context.Context, in *cluster, live *unstructured.Unstructured,
	wanted *admissionregistrationv1.ValidatingWebhookConfiguration,
) (renewal, error) {
	if live == nil {
		return renewal{}, nil
	}
	stored, err := in.webhooks(live)
	if err != nil {
		return renewal{}, err
	}
	known := make(map[string]bool, len(stored))
	for n := range stored {
		known[stored[n].Name] = true
	}
	isNew := func(webhook admissionregistrationv1.ValidatingWebhook) bool { return !known[webhook.Name] }
	narrowed := *wanted
	narrowed.Webhooks = slices.DeleteFunc(slices.Clone(wanted.Webhooks), isNew)
	renewed, err := in.apply(ctx, i.unstructured(&narrowed))
	if err != nil {
		return renewal{}, err
	}
	// Webhooks that others have added by hand are still there.
	left, err := in.webhooks(renewed)
	former := without(without(managersCalled(stored), managersCalled(wanted.Webhooks)), managersCalled(left))
	return renewal{
		former: former, complete: len(narrowed.Webhooks) == len(wanted.Webhooks), live: renewed,
	}, err
}

// webhooks returns the webhooks of a configuration.
func (c *cluster) webhooks(
	configuration *unstructured.Unstructured,
) ([]admissionregistrationv1.ValidatingWebhook, error) {
	var stored admissionregistrationv1.ValidatingWebhookConfiguration
	if err := c.decode(configuration, &stored); err != nil {
		return nil, err
	}
	return stored.Webhooks, nil
}

// managersCalled returns the managers of webhooks, each once.
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
