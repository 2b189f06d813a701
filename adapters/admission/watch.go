package admission

import (
	"errors"
	"fmt"
	"maps"
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

// Watch is a set of objects to watch in a runtime for one manager.
type Watch struct {
	// Name identifies the watch, and must be unique. The webhook is named after it.
	Name types.NamespacedName
	// Manager gets the events.
	Manager core.Manager
	// Resource is the resource to watch. Its Group is "" for the core API, and its Version may be
	// "*". Its Resource may have a subresource, such as "pods/eviction", but not the status.
	Resource schema.GroupVersionResource
	// Kind is the kind of the resource without its subresource. Events of subresources name it,
	// because a review has the kind of the subresource, such as Scale. Default: that of a resource
	// of Kubernetes, and none for any other.
	Kind string
	// Labels must all be on an object, before or after the change. Most subresources show no
	// labels, so a watch of them must have none. Scale never has them: each write to it counts.
	// Default: none, every object.
	Labels map[string]string
	// LabelExpressions must all hold, as Labels. Default: none.
	LabelExpressions []metav1.LabelSelectorRequirement
	// NamespaceSelector selects the namespaces of objects by their labels. Objects without a
	// namespace are watched, except Namespaces that it does not select. Default: all namespaces.
	NamespaceSelector *metav1.LabelSelector
	// Conditions are CEL expressions that must all be true for a write, as in a webhook
	// configuration. An API server skips a write for which one fails, so each must be defined for
	// every write. Default: none.
	Conditions []admissionregistrationv1.MatchCondition
	// Field is the watched part of the object: [core.FieldSpec] or [core.FieldStatus]. With
	// [core.FieldSpec], changes through the scale subresource count, too. Default:
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

// webhooks returns the webhook of the watch, and that of scale if the watch includes it.
func (w *Watch) webhooks(endpoint Endpoint, opts ConfigurationOptions) []admissionregistrationv1.ValidatingWebhook {
	own := w.webhook(w.target(), endpoint, opts)
	own.Name = w.webhookName(webhookSuffix)
	if !w.includesScale() {
		return []admissionregistrationv1.ValidatingWebhook{own}
	}
	scale := w.webhook(target{w.Resource.Resource, subresourceScale}, endpoint, opts)
	scale.Name = w.webhookName(scaleSuffix)
	// A Scale has no labels, so a selector would match none.
	scale.ObjectSelector = &metav1.LabelSelector{}
	return []admissionregistrationv1.ValidatingWebhook{own, scale}
}

// webhook sets all defaults that an API server would set, so that the stored object equals it. It
// has no name.
func (w *Watch) webhook(
	target target, endpoint Endpoint, opts ConfigurationOptions,
) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		ClientConfig: endpoint.clientConfig(w.path(target)),
		Rules:        []admissionregistrationv1.RuleWithOperations{w.rule(target)},
		// Ignore: a write must not fail because the agent is not available.
		FailurePolicy:           new(admissionregistrationv1.Ignore),
		MatchPolicy:             new(admissionregistrationv1.Equivalent),
		NamespaceSelector:       w.namespaceSelector(opts),
		ObjectSelector:          w.objectSelector(),
		SideEffects:             new(admissionregistrationv1.SideEffectClassNoneOnDryRun),
		TimeoutSeconds:          new(int32(opts.Timeout / time.Second)), //nolint:gosec // Validated: at most 30.
		AdmissionReviewVersions: []string{"v1"},
		MatchConditions:         w.matchConditions(target, opts),
	}
}

// webhookName is <namespace>.<name> of the watch with a suffix of its own for each webhook. It is
// unique for each watch, because a namespace has no dot.
func (w *Watch) webhookName(suffix string) string {
	return w.Name.Namespace + "." + w.Name.Name + suffix
}

// objectSelector selects by the labels.
func (w *Watch) objectSelector() *metav1.LabelSelector {
	return &metav1.LabelSelector{
		MatchLabels:      maps.Clone(w.Labels),
		MatchExpressions: copyOf(w.LabelExpressions),
	}
}

// namespaceSelector joins the selector of the watch and that of the configuration.
func (w *Watch) namespaceSelector(opts ConfigurationOptions) *metav1.LabelSelector {
	joined := opts.namespaceSelector()
	if own := w.NamespaceSelector.DeepCopy(); own != nil {
		joined.MatchLabels = own.MatchLabels
		joined.MatchExpressions = slices.Concat(own.MatchExpressions, joined.MatchExpressions)
	}
	return joined
}

// copyOf returns a deep copy.
func copyOf(expressions []metav1.LabelSelectorRequirement) []metav1.LabelSelectorRequirement {
	return (&metav1.LabelSelector{MatchExpressions: expressions}).DeepCopy().MatchExpressions
}

// rule matches all versions that the watch names, in all scopes.
func (w *Watch) rule(target target) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: target.operations(),
		Rule: admissionregistrationv1.Rule{
			APIGroups:   []string{w.Resource.Group},
			APIVersions: []string{w.Resource.Version},
			Resources:   []string{target.String()},
			Scope:       new(admissionregistrationv1.AllScopes),
		},
	}
}

// problems returns the problems in a fixed order, none for a valid watch.
func (w *Watch) problems() []error {
	_, invalidManager := core.ParseManager(string(w.Manager))
	problems := append(w.nameProblems(), invalidManager)
	problems = slices.Concat(problems, w.fieldProblems(), w.resourceProblems(), w.selectorProblems())
	return slices.DeleteFunc(problems, func(err error) bool { return err == nil })
}

// nameProblems checks that the name of the webhook is valid and short enough. Its errors may be
// nil, as those of the functions below.
func (w *Watch) nameProblems() []error {
	problems := []error{
		invalid(validation.IsDNS1123Label(w.Name.Namespace), "namespace %.80q", w.Name.Namespace),
		invalid(validation.IsDNS1123Subdomain(w.Name.Name), "name %.80q", w.Name.Name),
	}
	length := len(w.webhookName(webhookSuffix))
	if problems[1] == nil && length > validation.DNS1123SubdomainMaxLength {
		problems = append(problems, fmt.Errorf("the webhook's name <namespace>.<name>%s has %d bytes, want at most %d",
			webhookSuffix, length, validation.DNS1123SubdomainMaxLength))
	}
	return problems
}

// fieldProblems refuses the status of a subresource.
func (w *Watch) fieldProblems() []error {
	switch {
	case w.Field != "" && w.Field != core.FieldSpec && w.Field != core.FieldStatus:
		return []error{fmt.Errorf("field: want %q or %q, have %.40q", core.FieldSpec, core.FieldStatus, w.Field)}
	case w.Field == core.FieldStatus && strings.Contains(w.Resource.Resource, "/"):
		return []error{fmt.Errorf("field: want %q for a subresource, have %q", core.FieldSpec, w.Field)}
	default:
		return nil
	}
}

// resourceProblems accepts exactly one resource by its plural name, and at most one subresource. A
// wildcard would match more than the watch.
func (w *Watch) resourceProblems() []error {
	resource, subresource, hasSubresource := strings.Cut(w.Resource.Resource, "/")
	problems := []error{invalid(validation.IsDNS1123Label(resource), "resource %.80q", w.Resource.Resource)}
	if hasSubresource {
		problems = append(problems,
			invalid(validation.IsDNS1123Label(subresource), "resource %.80q", w.Resource.Resource))
	}
	if subresource == string(core.FieldStatus) {
		problems = append(problems, fmt.Errorf("resource %.80q: want it without status, and field %q",
			w.Resource.Resource, core.FieldStatus))
	}
	if w.Kind != "" && kindSegment(w.Kind) == "" {
		problems = append(problems,
			fmt.Errorf("kind: want upper camel case of ASCII such as Deployment, have %.80q", w.Kind))
	}
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

// selectorProblems checks labels, expressions and the selector of namespaces.
func (w *Watch) selectorProblems() []error {
	problems := labelProblems(w.Labels)
	for _, selector := range []*metav1.LabelSelector{w.objectSelector(), w.NamespaceSelector} {
		if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			problems = append(problems, fmt.Errorf("selector: %w", err))
		}
	}
	if selects := len(w.Labels)+len(w.LabelExpressions) > 0; selects && !w.target().hasLabels() {
		problems = append(problems, fmt.Errorf("labels: want none for %.80q: its reviews show no labels",
			w.Resource.Resource))
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
