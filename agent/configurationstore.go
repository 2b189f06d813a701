package agent

import (
	"context"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

type webhookConfiguration = admissionregistrationv1.ValidatingWebhookConfiguration

// ConfigurationStore stores one webhook configuration in an API server. Each method blocks until
// the API server answers or ctx ends. The methods may be called concurrently.
type ConfigurationStore interface {
	// Read returns nil if there is no configuration.
	Read(ctx context.Context) (*webhookConfiguration, error)
	// Apply creates the configuration if live is nil, and otherwise replaces live. It returns the
	// result. It fails if the stored object is not live.
	Apply(ctx context.Context, want, live *webhookConfiguration) (*webhookConfiguration, error)
	// Delete deletes the stored configuration if its UID is that of live, and otherwise fails. It
	// returns nil if there is no configuration.
	Delete(ctx context.Context, live *webhookConfiguration) error
	// Watch calls changed after each change. It returns when the API server ends the watch.
	Watch(ctx context.Context, changed func()) error
}
