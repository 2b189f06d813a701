package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

var errInvalidConfiguration error = &reasons.Error{
	Text: "invalid webhook configuration", Label: "invalid_configuration", Permanent: true,
}

// WebhookConfiguration returns the configuration with which an API server sends its reviews to
// endpoint. It has one webhook for each watch, one more for its scale subresource, and one for each
// manager for the deletion of the definitions of the watched custom resources. The webhooks are
// sorted by name. A failure of the endpoint never blocks a write, because the failure policy is
// Ignore. The annotation [RecordAnnotation] contains a record of the webhooks.
//
// WebhookConfiguration does no I/O and keeps no reference to its arguments. The error is permanent,
// has the reason invalid_configuration, and names all problems. It does not detect names and
// addresses that only an API server refuses.
func WebhookConfiguration(
	name string, endpoint Endpoint, watches []watch.Watch, opts ConfigurationOptions,
) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	opts = opts.withDefaults(&endpoint)
	isWhole := opts.Timeout >= time.Second && opts.Timeout <= maxTimeout && opts.Timeout%time.Second == 0
	isNoNamespace := func(name string) bool { return len(validation.IsDNS1123Label(name)) > 0 }
	isLease := !isNoNamespace(opts.Canary.Namespace) && len(validation.IsDNS1123Subdomain(opts.Canary.Name)) == 0
	invalid := errors.Join(
		endpoint.validate(),
		option.Unless(isWhole, "timeout: want 1 s to 30 s in whole seconds, have %s", opts.Timeout),
		// An API server takes other names, and selects nothing.
		option.Unless(isLease || opts.Canary == types.NamespacedName{}, "canary: want names, have %.160q", opts.Canary),
		option.Unless(!slices.ContainsFunc(opts.ExcludedNamespaces, isNoNamespace),
			"excluded namespaces: want names, have %.200q", opts.ExcludedNamespaces),
		option.Unless(validation.IsDNS1123Subdomain(opts.WebhookDomain) == nil,
			"webhook domain: want a DNS-1123 subdomain, have %.260q", opts.WebhookDomain),
		core.ValidateOwnerAnnotation(opts.OwnerAnnotation),
		watch.Validate(watches), opts.validateNames(watches))
	if invalid != nil {
		return nil, fmt.Errorf("%w: %w", errInvalidConfiguration, invalid)
	}

	webhooks := (&builder{endpoint, opts}).buildWebhooks(watches)
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta: metav1.TypeMeta{
			APIVersion: admissionregistrationv1.SchemeGroupVersion.String(),
			Kind:       "ValidatingWebhookConfiguration",
		},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: opts.allLabels(),
			Annotations: map[string]string{RecordAnnotation: Record(webhooks)},
		},
		Webhooks: webhooks,
	}, nil
}

// validateNames checks that webhooks can have the names of the watches.
func (o ConfigurationOptions) validateNames(watches []watch.Watch) error {
	var problems []error
	for n := range watches {
		name := watches[n].Name
		length := len(name.Namespace+"."+name.Name) + len(o.nameSuffix(watchLabel))
		problems = append(problems, option.Unless(length <= validation.DNS1123SubdomainMaxLength,
			"%w %.330q: the webhook's name <namespace>.<name>%s has %d bytes, want at most %d", watch.ErrInvalid,
			name.String(), o.nameSuffix(watchLabel), length, validation.DNS1123SubdomainMaxLength))
	}
	return errors.Join(problems...)
}

// buildWebhooks returns the webhooks of all watches, sorted by name.
func (b *builder) buildWebhooks(watches []watch.Watch) (all []admissionregistrationv1.ValidatingWebhook) {
	for n := range watches {
		all = append(all, (&registration{&watches[n], b}).newWebhooks()...)
	}

	all = append(all, b.definitionWebhooks(watches)...)
	if b.opts.Canary != (types.NamespacedName{}) {
		all = append(all, b.canaryWebhook())
	}

	slices.SortFunc(all, func(a, b admissionregistrationv1.ValidatingWebhook) int {
		return strings.Compare(a.Name, b.Name)
	})
	return all
}
