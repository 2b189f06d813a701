package installation

import (
	"fmt"
	"maps"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
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
