package installation

import (
	"context"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// renewConfiguration updates the webhooks that the API server has already, and removes the others.
// New webhooks wait until the agent answers. It returns the managers that no webhook names any
// more, and whether there is a configuration.
func (i *Installer) renewConfiguration(
	ctx context.Context, in *cluster, wanted *admissionregistrationv1.ValidatingWebhookConfiguration,
) (former []core.Manager, found bool, err error) {
	stored, err := i.storedWebhooks(ctx, in, wanted)
	if err != nil || stored == nil {
		return nil, false, err
	}

	narrowed := *wanted
	narrowed.Webhooks = slices.DeleteFunc(slices.Clone(wanted.Webhooks), isNew(stored))

	if err := in.apply(ctx, i.unstructured(&narrowed)); err != nil {
		return nil, true, err
	}

	former = without(managersCalled(stored), managersCalled(wanted.Webhooks))
	if len(former) == 0 {
		return nil, true, nil
	}

	// Webhooks that others have added by hand are still there.
	left, err := i.storedWebhooks(ctx, in, wanted)

	return without(former, managersCalled(left)), true, err
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

// storedWebhooks returns nil when there is no configuration.
func (i *Installer) storedWebhooks(
	ctx context.Context, in *cluster, configuration *admissionregistrationv1.ValidatingWebhookConfiguration,
) ([]admissionregistrationv1.ValidatingWebhook, error) {
	live, err := in.get(ctx, i.unstructured(configuration))
	if err != nil || live == nil {
		return nil, err
	}
	var stored admissionregistrationv1.ValidatingWebhookConfiguration
	if err := in.decode(live, &stored); err != nil {
		return nil, err
	}
	return append([]admissionregistrationv1.ValidatingWebhook{}, stored.Webhooks...), nil
}

// managersCalled returns the managers of webhooks, each once.
func managersCalled(webhooks []admissionregistrationv1.ValidatingWebhook) (managers []core.Manager) {
	for n := range webhooks {
		service := webhooks[n].ClientConfig.Service
		if service == nil || service.Path == nil {
			continue
		}
		if manager, ok := admission.ManagerOf(*service.Path); ok && !slices.Contains(managers, manager) {
			managers = append(managers, manager)
		}
	}
	return managers
}

func without(managers, others []core.Manager) []core.Manager {
	return slices.DeleteFunc(managers, func(m core.Manager) bool { return slices.Contains(others, m) })
}
