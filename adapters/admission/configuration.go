package admission

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
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
	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

const (
	pathPrefix     = "/validate/"
	defaultDomain  = "kyma-project.io"
	defaultTimeout = 2 * time.Second
	maxTimeout     = 30 * time.Second // admissionregistration.k8s.io/v1
	defaultPort    = 443
)

var errInvalidConfiguration error = &reasons.Error{
	Text: "invalid webhook configuration", Label: "invalid_configuration", Permanent: true,
}

func pathOf(manager core.Manager) string { return pathPrefix + string(manager) }

// ManagerOf returns the manager of the path of its reviews, /validate/<manager>, or of the path of
// a subresource, which ends with a kind. It reports false for any other path.
func ManagerOf(path string) (core.Manager, bool) {
	name, found := strings.CutPrefix(path, pathPrefix)
	name, kind, hasKind := strings.Cut(name, "/")
	manager, err := core.ParseManager(name)
	isKnown := !hasKind || kindOf(kind) != ""

	return manager, found && err == nil && isKnown
}

// ConfigurationOptions are the optional settings of [WebhookConfiguration]. The zero value is the
// documented default.
type ConfigurationOptions struct {
	// Labels are labels of the configuration object, in addition to admissions.enforcer/disabled:
	// "true". With that label, AKS does not add exclusions to the webhooks. Labels may set that
	// label to another value. Default: none.
	Labels map[string]string
	// Timeout is how long an API server waits for an answer before it continues without one: 1 s to
	// 30 s, in whole seconds. Default: 2 s.
	Timeout time.Duration
	// Canary is the Lease in the runtime that the canary of the agent writes. Default: none, so
	// there is no canary.
	Canary types.NamespacedName
	// NoMatchConditions makes an API server call the handler for every write. Set it if the filter
	// of the handler accepts more than [core.Changed]. By default the API server itself skips dry
	// runs and updates that leave the watched field unchanged, which requires Kubernetes 1.28.
	// Conditions of a [watch.Watch] are always used.
	NoMatchConditions bool
	// WebhookDomain ends the names of all webhooks: <namespace>.<name>.operator.<WebhookDomain> for
	// a watch, with scale in place of operator for its scale subresource. API servers store the
	// names: with another domain, all webhooks get new names. Default: "kyma-project.io".
	WebhookDomain string
	// OwnerAnnotation is the annotation that names the owner of an object. A change of that
	// annotation counts. It must equal OwnerAnnotation of the handler's [Options]. Default:
	// [core.OwnerAnnotation].
	OwnerAnnotation string
	// ExcludedNamespaces are namespaces in which nothing is watched. Objects without a namespace
	// are watched, except the Namespace objects with these names. An empty list that is not nil
	// excludes no namespace. Set such a list if watched objects are in the namespace of the agent.
	// Default: kube-system and the namespace of the service, so that the agent's own objects cause
	// no events.
	ExcludedNamespaces []string
}

// labelNoEnforcer opts out of the admissions enforcer of AKS. Other platforms ignore it.
const labelNoEnforcer = "admissions.enforcer/disabled"

func (o ConfigurationOptions) allLabels() map[string]string {
	all := map[string]string{labelNoEnforcer: "true"}
	maps.Copy(all, o.Labels)
	return all
}

// withDefaults returns a copy with all defaults set, which depend on the endpoint.
func (o ConfigurationOptions) withDefaults(endpoint *Endpoint) ConfigurationOptions {
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.WebhookDomain = cmp.Or(o.WebhookDomain, defaultDomain)
	o.OwnerAnnotation = cmp.Or(o.OwnerAnnotation, core.OwnerAnnotation)
	if o.ExcludedNamespaces == nil {
		o.ExcludedNamespaces = []string{metav1.NamespaceSystem}
		if endpoint.Service.Namespace != "" {
			o.ExcludedNamespaces = append(o.ExcludedNamespaces, endpoint.Service.Namespace)
		}
	}

	return o
}

// namespaceSelector selects by the label that Kubernetes adds to every namespace.
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

// Endpoint is the address at which an API server calls a handler: either a URL or a service of its
// cluster.
type Endpoint struct {
	// URL is an https URL without user, query and fragment. The paths of the handler are appended.
	URL string
	// Service is the name of a service in the runtime.
	Service types.NamespacedName
	// ServicePort is the port of the service. Default: 443.
	ServicePort int32
	// CABundle contains the CAs of the endpoint's certificate in PEM, at least one. A block that
	// [keys.ParseBundle] skips is refused: use the PEM of its result.
	CABundle []byte
}

// clientConfig sets all defaults that an API server would set.
func (e *Endpoint) clientConfig(path string) admissionregistrationv1.WebhookClientConfig {
	config := admissionregistrationv1.WebhookClientConfig{CABundle: bytes.Clone(e.CABundle)}
	if e.URL != "" {
		base, _ := e.baseURL() // It is valid.
		config.URL = new(base + path)
		return config
	}

	config.Service = &admissionregistrationv1.ServiceReference{
		Namespace: e.Service.Namespace,
		Name:      e.Service.Name,
		Path:      new(path),
		Port:      new(cmp.Or(e.ServicePort, defaultPort)),
	}

	return config
}

var errEndpointURL = errors.New("want an https URL without user, query and fragment")

// baseURL returns the URL without a slash at its end. Its host has the form in which the API server
// compares it with the certificate.
func (e *Endpoint) baseURL() (string, error) {
	parsed, err := url.Parse(e.URL)
	if err != nil {
		return "", errEndpointURL
	}

	hasMore := parsed.User != nil || parsed.RawQuery+parsed.Fragment != ""
	if parsed.Scheme != "https" || hasMore {
		return "", errEndpointURL
	}

	host, err := connect.ParseHost(parsed.Hostname())
	if err != nil {
		return "", fmt.Errorf("URL: %w", err)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port := parsed.Port(); port != "" {
		host += ":" + port
	}

	parsed.Host = host
	return strings.TrimSuffix(parsed.String(), "/"), nil
}

func (e *Endpoint) validate() error {
	hasURL := e.URL != ""
	hasService := e.Service != types.NamespacedName{}
	_, urlErr := e.baseURL()
	return errors.Join(
		option.Unless(hasURL || hasService, "endpoint: want a URL or a service, have neither"),
		option.Unless(!hasURL || !hasService, "endpoint: want a URL or a service, have both"),
		option.Unless(!hasURL || urlErr == nil, "endpoint: %w", urlErr),
		validateBundle(e.CABundle))
}

// validateBundle accepts a bundle that an API server reads in full. An API server skips other
// blocks in silence, so such a block is an error here.
func validateBundle(text []byte) error {
	bundle, err := keys.ParseBundle(text)
	if err != nil {
		return fmt.Errorf("CA bundle: want at least one certificate in PEM: %w", err)
	}
	if len(bundle.Skipped) > 0 {
		return fmt.Errorf("CA bundle: want certificates only: %s", strings.Join(bundle.Skipped, ", "))
	}
	return nil
}
