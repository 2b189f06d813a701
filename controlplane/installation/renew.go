package installation

import (
	"context"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
)

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
	narrowed := *wanted
	narrowed.Webhooks = slices.DeleteFunc(slices.Clone(wanted.Webhooks), isNew(stored))
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

// isNew returns a function that reports whether a webhook is not among the stored ones.
func isNew(
	stored []admissionregistrationv1.ValidatingWebhook,
) func(admissionregistrationv1.ValidatingWebhook) bool {
	names := make(map[string]bool, len(stored))
	for n := range stored {
		names[stored[n].Name] = true
	}
	return func(webhook admissionregistrationv1.ValidatingWebhook) bool { return !names[webhook.Name] }
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
