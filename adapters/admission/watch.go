package admission

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Watch is a set of objects to watch in a runtime for one manager.
type Watch struct {
	// Name identifies the watch, and must be unique. The webhook is named after it.
	Name types.NamespacedName
	// Manager gets the events.
	Manager core.Manager
	// Resource is the resource to watch. Its Group is "" for the core API, and its Version may be
	// "*".
	Resource schema.GroupVersionResource
	// Labels must all be on an object, before or after the change. Default: none, every object.
	Labels map[string]string
	// Field is the watched part of the object: [core.FieldSpec] or [core.FieldStatus]. Default:
	// [core.FieldSpec].
	Field core.Field
}

// Validate returns all problems of the watch itself, so that a caller can leave out one watch. The
// error wraps [ErrInvalidConfiguration].
func (w *Watch) Validate() error {
	if err := errors.Join(w.problems()...); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidConfiguration, err)
	}
	return nil
}

// webhook sets all defaults that an API server would set, so that the stored object equals it.
func (w *Watch) webhook(endpoint Endpoint, opts ConfigurationOptions) admissionregistrationv1.ValidatingWebhook {
	webhook := admissionregistrationv1.ValidatingWebhook{
		Name:         w.webhookName(),
		ClientConfig: endpoint.clientConfig(Path(w.Manager)),
		Rules:        []admissionregistrationv1.RuleWithOperations{w.rule()},
		// Ignore: a write must not fail because the agent is not available.
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

// webhookName is <namespace>.<name> of the watch with the suffix of this API group. It is unique
// for each watch, because a namespace has no dot.
func (w *Watch) webhookName() string { return w.Name.Namespace + "." + w.Name.Name + webhookSuffix }

// rule matches all versions that the watch names, in all scopes.
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

// problems returns the problems in a fixed order, none for a valid watch.
func (w *Watch) problems() []error {
	_, invalidManager := core.ParseManager(string(w.Manager))
	problems := append(w.nameProblems(), invalidManager)
	if w.Field != "" && w.Field != core.FieldSpec && w.Field != core.FieldStatus {
		problems = append(problems,
			fmt.Errorf("field: want %q or %q, have %.40q", core.FieldSpec, core.FieldStatus, w.Field))
	}
	problems = slices.Concat(problems, w.resourceProblems(), labelProblems(w.Labels))
	return slices.DeleteFunc(problems, func(err error) bool { return err == nil })
}

// nameProblems checks that the name of the webhook is valid and short enough. Its errors may be
// nil, as those of the functions below.
func (w *Watch) nameProblems() []error {
	problems := []error{
		invalid(validation.IsDNS1123Label(w.Name.Namespace), "namespace %.80q", w.Name.Namespace),
		invalid(validation.IsDNS1123Subdomain(w.Name.Name), "name %.80q", w.Name.Name),
	}
	if length := len(w.webhookName()); problems[1] == nil && length > validation.DNS1123SubdomainMaxLength {
		problems = append(problems, fmt.Errorf("the webhook's name <namespace>.<name>%s has %d bytes, want at most %d",
			webhookSuffix, length, validation.DNS1123SubdomainMaxLength))
	}
	return problems
}

// resourceProblems accepts exactly one resource by its plural name. A wildcard would match more
// than the watch, and '/' separates a subresource.
func (w *Watch) resourceProblems() []error {
	problems := []error{invalid(validation.IsDNS1123Label(w.Resource.Resource), "resource %.80q", w.Resource.Resource)}
	if w.Resource.Version != anyVersion {
		problems = append(problems, invalid(validation.IsDNS1123Label(w.Resource.Version),
			"version %.80q: want %q, or", w.Resource.Version, anyVersion))
	}
	if w.Resource.Group != "" {
		problems = append(problems, invalid(validation.IsDNS1123Subdomain(w.Resource.Group),
			"group %.80q", w.Resource.Group))
	}
	return problems
}

// labelProblems checks keys and values of labels, in the order of the keys.
func labelProblems(labels map[string]string) (problems []error) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		problems = append(problems,
			invalid(validation.IsQualifiedName(key), "label %.80q", key),
			invalid(validation.IsValidLabelValue(labels[key]), "value %.80q of label %.80q", labels[key], key))
	}
	return problems
}

// invalid returns an error for the first problem that a function of package validation found, and
// nil if it found none. The format describes the value.
func invalid(problems []string, format string, args ...any) error {
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf(format+": %s", append(args, problems[0])...)
}
