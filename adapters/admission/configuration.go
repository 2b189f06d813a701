package admission

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	pathPrefix      = "/validate/"
	webhookSuffix   = ".operator.kyma-project.io"
	defaultTimeout  = 2 * time.Second
	maxTimeout      = 30 * time.Second // admissionregistration.k8s.io/v1
	defaultPort     = 443
	anyVersion      = "*"
	certificateType = "CERTIFICATE"
)

// ErrInvalidConfiguration means that a webhook configuration can not be built from what was given.
var ErrInvalidConfiguration = errors.New("invalid webhook configuration")

// Path returns the URL path at which a [Handler] takes the reviews of a manager.
func Path(manager core.Manager) string { return pathPrefix + string(manager) }

// ManagerOf returns the manager whose [Path] this is, and whether it is one.
func ManagerOf(path string) (core.Manager, bool) {
	name, found := strings.CutPrefix(path, pathPrefix)
	manager, err := core.ParseManager(name)

	return manager, found && err == nil
}

// ConfigurationOptions are what is optional of a webhook configuration.
type ConfigurationOptions struct {
	// Labels of the configuration itself.
	Labels map[string]string
	// Timeout is how long an API server waits for an answer before it goes on without, 1 s to 30 s in whole seconds. Default: 2 s.
	Timeout time.Duration
	// Canary is the Lease in the runtime that the agent writes to find out whether the API server calls it (package canary). Default: none.
	Canary types.NamespacedName
	// MatchConditions keep what [core.Changed] does not let pass inside the API server: dry runs, and updates that leave what is
	// watched as it was. They are only right for a [Handler] whose filter lets pass no more than that, as the default does, and for
	// API servers from 1.30 on. Default: none, and the handler is asked about every write.
	MatchConditions bool
	// ExcludedNamespaces are those in which nothing is watched. The labels of a Namespace itself decide, so objects without a
	// namespace are watched in any case, and Namespaces of these names never. Empty and not nil excludes none. Default:
	// kube-system and the namespace of the service, so that what keeps the agent running does not trigger it.
	//
	// Where objects to watch live beside the agent, that default would hide them.
	ExcludedNamespaces []string
}

func (o ConfigurationOptions) withDefaults(endpoint *Endpoint) ConfigurationOptions {
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)

	if o.ExcludedNamespaces == nil {
		o.ExcludedNamespaces = []string{metav1.NamespaceSystem}

		if endpoint.Service.Namespace != "" {
			o.ExcludedNamespaces = append(o.ExcludedNamespaces, endpoint.Service.Namespace)
		}
	}

	return o
}

func (o ConfigurationOptions) validate() error {
	if o.Timeout < time.Second || o.Timeout > maxTimeout || o.Timeout%time.Second != 0 {
		return fmt.Errorf("timeout: want 1 s to 30 s in whole seconds, have %s", o.Timeout)
	}

	problems := append(labelProblems(o.Labels), canaryProblem(o.Canary))

	for _, namespace := range o.ExcludedNamespaces {
		if wrong := validation.IsDNS1123Label(namespace); wrong != nil {
			problems = append(problems, fmt.Errorf("excluded namespace %.80q: %s", namespace, wrong[0]))
		}
	}

	return errors.Join(problems...)
}

// namespaceSelector selects by the label that every namespace has, with its name.
func (o ConfigurationOptions) namespaceSelector() *metav1.LabelSelector {
	if len(o.ExcludedNamespaces) == 0 {
		return &metav1.LabelSelector{}
	}

	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key:      namespaceLabel,
		Operator: metav1.LabelSelectorOpNotIn,
		Values:   slices.Compact(slices.Sorted(slices.Values(o.ExcludedNamespaces))),
	}}}
}

// WebhookConfiguration returns the configuration of that name which makes an API server send its reviews to endpoint, with one
// webhook per watch, in the order of the webhooks' names. Nothing that an endpoint does can block a write: its failures are ignored.
//
// It does no I/O and keeps nothing of what it is given. The error wraps [ErrInvalidConfiguration] and names everything that is wrong.
func WebhookConfiguration(
	name string, endpoint Endpoint, watches []Watch, opts ConfigurationOptions,
) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	opts = opts.withDefaults(&endpoint)

	if err := validateConfiguration(name, endpoint, watches, opts); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidConfiguration, err)
	}

	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta: metav1.TypeMeta{
			APIVersion: admissionregistrationv1.SchemeGroupVersion.String(),
			Kind:       "ValidatingWebhookConfiguration",
		},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: maps.Clone(opts.Labels)},
	}

	for _, watch := range watches {
		configuration.Webhooks = append(configuration.Webhooks, watch.webhook(endpoint, opts))
	}

	if opts.Canary != (types.NamespacedName{}) {
		configuration.Webhooks = append(configuration.Webhooks, canaryWebhook(endpoint, opts))
	}

	slices.SortFunc(configuration.Webhooks, func(a, b admissionregistrationv1.ValidatingWebhook) int {
		return strings.Compare(a.Name, b.Name)
	})

	return configuration, nil
}

func validateConfiguration(name string, endpoint Endpoint, watches []Watch, opts ConfigurationOptions) error {
	problems := []error{endpoint.validate(), opts.validate()}

	if wrong := validation.IsDNS1123Subdomain(name); wrong != nil {
		problems = append(problems, fmt.Errorf("name %.80q: %s", name, wrong[0]))
	}

	seen := make(map[types.NamespacedName]bool, len(watches))

	for _, watch := range watches {
		for _, problem := range watch.problems() {
			problems = append(problems, fmt.Errorf("watch %.330q: %w", watch.Name.String(), problem))
		}

		if seen[watch.Name] {
			problems = append(problems, fmt.Errorf("watch %.330q: want an unique name, have it twice", watch.Name.String()))
		}

		seen[watch.Name] = true
	}

	return errors.Join(problems...)
}
