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
