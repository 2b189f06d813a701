package admission

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// Watch is what to watch in a runtime, and for whom.
type Watch struct {
	// Name identifies the watch, and must be unique. It becomes the name of the webhook.
	Name types.NamespacedName
	// Manager gets the events.
	Manager core.Manager
	// Resource is what is watched; its Group is empty for the core API, its Version may be "*".
	Resource schema.GroupVersionResource
	// Labels an object must have to be watched, before or after a change. Without any, every object is.
	Labels map[string]string
	// Field is the part of the object that matters: [core.FieldSpec] or [core.FieldStatus]. Default: [core.FieldSpec].
	Field core.Field
}

// Validate tells everything that is wrong with a watch by itself, so that one can be left out without the others. The error wraps
// [ErrInvalidConfiguration].
func (w *Watch) Validate() error {
	if err := errors.Join(w.problems()...); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidConfiguration, err)
	}

	return nil
}

// Endpoint is where the API server of a runtime reaches a [Handler]: at a URL or at a service of its cluster, exactly
// one of them.
type Endpoint struct {
	// URL is an https URL without query, below which the paths of the handler begin.
	URL string
	// Service is a service in the runtime.
	Service types.NamespacedName
	// ServicePort is the port of the service. Default: 443.
	ServicePort int32
	// CABundle is what the endpoint's certificate must chain to: at least one certificate in PEM.
	CABundle []byte
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

// webhook states what an API server would default, too, so that what it stores equals what was built.
func (w *Watch) webhook(endpoint Endpoint, opts ConfigurationOptions) admissionregistrationv1.ValidatingWebhook {
	webhook := admissionregistrationv1.ValidatingWebhook{
		Name:                    w.webhookName(),
		ClientConfig:            endpoint.clientConfig(Path(w.Manager)),
		Rules:                   []admissionregistrationv1.RuleWithOperations{w.rule()},
		FailurePolicy:           new(admissionregistrationv1.Ignore),
		MatchPolicy:             new(admissionregistrationv1.Equivalent),
		NamespaceSelector:       opts.namespaceSelector(),
		ObjectSelector:          &metav1.LabelSelector{MatchLabels: maps.Clone(w.Labels)},
		SideEffects:             new(admissionregistrationv1.SideEffectClassNoneOnDryRun),
		TimeoutSeconds:          new(int32(opts.Timeout / time.Second)), //nolint:gosec // Validated: at most 30.
		AdmissionReviewVersions: []string{"v1"},
	}

	if opts.MatchConditions {
		webhook.MatchConditions = w.matchConditions()
	}

	return webhook
}

func (w *Watch) webhookName() string { return w.Name.Namespace + "." + w.Name.Name + webhookSuffix }

func (w *Watch) rule() admissionregistrationv1.RuleWithOperations {
	resource := w.Resource.Resource
	if w.Field == core.FieldStatus {
		resource += "/status"
	}

	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{
			admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete,
		},
		Rule: admissionregistrationv1.Rule{
			APIGroups:   []string{w.Resource.Group},
			APIVersions: []string{w.Resource.Version},
			Resources:   []string{resource},
			Scope:       new(admissionregistrationv1.AllScopes),
		},
	}
}

func (e *Endpoint) clientConfig(path string) admissionregistrationv1.WebhookClientConfig {
	config := admissionregistrationv1.WebhookClientConfig{CABundle: bytes.Clone(e.CABundle)}

	if e.URL != "" {
		config.URL = new(strings.TrimSuffix(e.URL, "/") + path)

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

func (w *Watch) problems() []error {
	problems := w.nameProblems()

	if _, err := core.ParseManager(string(w.Manager)); err != nil {
		problems = append(problems, err)
	}

	if w.Field != "" && w.Field != core.FieldSpec && w.Field != core.FieldStatus {
		problems = append(problems, fmt.Errorf("field: want %q or %q, have %.40q", core.FieldSpec, core.FieldStatus, w.Field))
	}

	return slices.Concat(problems, w.resourceProblems(), labelProblems(w.Labels))
}

func (w *Watch) nameProblems() (problems []error) {
	if wrong := validation.IsDNS1123Label(w.Name.Namespace); wrong != nil {
		problems = append(problems, fmt.Errorf("namespace %.80q: %s", w.Name.Namespace, wrong[0]))
	}

	if wrong := validation.IsDNS1123Subdomain(w.Name.Name); wrong != nil {
		return append(problems, fmt.Errorf("name %.80q: %s", w.Name.Name, wrong[0]))
	}

	if length := len(w.webhookName()); length > validation.DNS1123SubdomainMaxLength {
		problems = append(problems, fmt.Errorf("the webhook's name <namespace>.<name>%s has %d bytes, want at most %d",
			webhookSuffix, length, validation.DNS1123SubdomainMaxLength))
	}

	return problems
}

func (w *Watch) resourceProblems() (problems []error) {
	// One resource, by its plural name: a wildcard would match what nobody asked to watch, a '/' names a subresource.
	if wrong := validation.IsDNS1123Label(w.Resource.Resource); wrong != nil {
		problems = append(problems, fmt.Errorf("resource %.80q: %s", w.Resource.Resource, wrong[0]))
	}

	if wrong := validation.IsDNS1123Label(w.Resource.Version); wrong != nil && w.Resource.Version != anyVersion {
		problems = append(problems, fmt.Errorf("version %.80q: want %q, or: %s", w.Resource.Version, anyVersion, wrong[0]))
	}

	if w.Resource.Group == "" {
		return problems
	}

	if wrong := validation.IsDNS1123Subdomain(w.Resource.Group); wrong != nil {
		problems = append(problems, fmt.Errorf("group %.80q: %s", w.Resource.Group, wrong[0]))
	}

	return problems
}

func labelProblems(labels map[string]string) (problems []error) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if wrong := validation.IsQualifiedName(key); wrong != nil {
			problems = append(problems, fmt.Errorf("label %.80q: %s", key, wrong[0]))
		}

		if wrong := validation.IsValidLabelValue(labels[key]); wrong != nil {
			problems = append(problems, fmt.Errorf("value %.80q of label %.80q: %s", labels[key], key, wrong[0]))
		}
	}

	return problems
}

func (e *Endpoint) validate() error {
	var none types.NamespacedName

	switch {
	case e.URL == "" && e.Service == none:
		return errors.Join(errors.New("endpoint: want a URL or a service, have neither"), validateBundle(e.CABundle))
	case e.URL != "" && e.Service != none:
		return errors.Join(errors.New("endpoint: want a URL or a service, have both"), validateBundle(e.CABundle))
	case e.URL != "":
		return errors.Join(validateURL(e.URL), validateBundle(e.CABundle))
	default:
		return errors.Join(e.validateService(), validateBundle(e.CABundle))
	}
}

// validateURL follows what an API server accepts of a webhook's URL.
func validateURL(text string) error {
	u, err := url.Parse(text)

	switch {
	case err != nil:
		return errors.New("endpoint: want an https URL, have none that can be parsed")
	case u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("endpoint: want https://<host>, have %.200q", u.Redacted())
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return fmt.Errorf("endpoint: want no user, query or fragment, have %.200q", u.Redacted())
	default:
		return nil
	}
}

func (e *Endpoint) validateService() error {
	var problems []error

	if wrong := validation.IsDNS1123Label(e.Service.Namespace); wrong != nil {
		problems = append(problems, fmt.Errorf("endpoint: namespace of the service %.80q: %s", e.Service.Namespace, wrong[0]))
	}

	if wrong := validation.IsDNS1035Label(e.Service.Name); wrong != nil {
		problems = append(problems, fmt.Errorf("endpoint: service %.80q: %s", e.Service.Name, wrong[0]))
	}

	if wrong := validation.IsValidPortNum(int(e.ServicePort)); wrong != nil && e.ServicePort != 0 {
		problems = append(problems, fmt.Errorf("endpoint: port %d: %s", e.ServicePort, wrong[0]))
	}

	return errors.Join(problems...)
}

// validateBundle accepts what an API server does: PEM blocks of type CERTIFICATE, at least one.
func validateBundle(bundle []byte) error {
	found := 0

	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != certificateType {
			return fmt.Errorf("CA bundle: want certificates only, have a PEM block of type %.40q", block.Type)
		}

		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("CA bundle: certificate %d: %w", found+1, err)
		}

		found++
	}

	if found == 0 {
		return errors.New("CA bundle: want at least one certificate in PEM, have none")
	}

	return nil
}
