package watch

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/dns1123"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// ErrInvalid means that a [Watch] cannot work in any runtime. It is permanent.
var ErrInvalid error = &reasons.Error{Text: "invalid watch", Label: "invalid_watch", Permanent: true}

// Validate returns nil, or an error that joins all problems of all watches and wraps [ErrInvalid].
// A duplicate name is also a problem.
func Validate(watches []Watch) error {
	var problems []error
	seen := make(map[types.NamespacedName]bool, len(watches))
	for n := range watches {
		w := &watches[n]
		problems = append(problems, w.Validate())
		if seen[w.Name] {
			problems = append(problems, w.joinProblems(errors.New("duplicate name")))
		}
		seen[w.Name] = true
	}
	return errors.Join(problems...)
}

// Validate returns nil, or an error that joins all problems of the watch and wraps [ErrInvalid].
func (w *Watch) Validate() error {
	_, invalidManager := core.ParseManager(string(w.Manager))
	return w.joinProblems(append(slices.Concat(
		w.nameProblems(), []error{invalidManager}, w.resourceProblems(),
		w.selectorProblems()), w.conditionProblems()...)...)
}

func (w *Watch) joinProblems(problems ...error) error {
	var all []error
	for _, problem := range problems {
		if problem != nil {
			all = append(all, fmt.Errorf("%w %.330q: %w", ErrInvalid, w.Name.String(), problem))
		}
	}
	return errors.Join(all...)
}

// nameProblems returns errors that may be nil, as the functions below do. A webhook has a longer
// name: the name of its operator follows, so package admission checks the length.
func (w *Watch) nameProblems() []error {
	return []error{
		option.Unless(dns1123.IsLabel(w.Name.Namespace), "namespace %.80q: want a DNS-1123 label", w.Name.Namespace),
		option.Unless(dns1123.IsSubdomain(w.Name.Name), "name %.80q: want a DNS-1123 subdomain", w.Name.Name),
	}
}

var kindPattern = regexp.MustCompile(`^([A-Z][a-z0-9]*)+$`)

// resourceProblems accepts exactly one resource by its plural name, and at most one subresource. A
// wildcard would match more than the watch.
func (w *Watch) resourceProblems() []error {
	r := w.Resource
	resource, subresource, hasSubresource := strings.Cut(r.Resource, "/")
	isSubresourceValid := !hasSubresource || dns1123.IsLabel(subresource)
	return []error{
		option.Unless(w.Field == "" || w.Field == core.FieldSpec || w.Field == core.FieldStatus,
			"field: want %q or %q, have %.40q", core.FieldSpec, core.FieldStatus, w.Field),
		option.Unless(w.Field != core.FieldStatus || !hasSubresource,
			"field: want %q for a subresource, have %q", core.FieldSpec, w.Field),
		option.Unless(dns1123.IsLabel(resource) && isSubresourceValid,
			"resource %.80q: want one by its plural name, such as configmaps or pods/eviction", r.Resource),
		option.Unless(subresource != string(core.FieldStatus),
			"resource %.80q: want it without status, and field %q", r.Resource, core.FieldStatus),
		option.Unless(w.Kind == "" || kindPattern.MatchString(w.Kind),
			"kind: want upper camel case of ASCII such as Deployment, have %.80q", w.Kind),
		option.Unless(r.Version == AnyVersion || dns1123.IsLabel(r.Version),
			"version %.80q: want %q, or a DNS-1123 label", r.Version, AnyVersion),
		option.Unless(r.Group == "" || dns1123.IsSubdomain(r.Group), "group %.80q: want a DNS-1123 subdomain", r.Group),
	}
}

func (w *Watch) selectorProblems() []error {
	_, subresource, _ := strings.Cut(w.Resource.Resource, "/")
	problems := append(w.Selector.problems("label"), option.Unless(w.Selector.IsZero() || hasLabels(subresource),
		"labels: want none for %.80q: its reviews show no labels", w.Resource.Resource))
	return append(problems, w.NamespaceSelector.problems("namespace selector: label")...)
}

// hasLabels reports whether reviews of a subresource show the labels of the resource. These
// subresources have objects of the resource's own kind.
func hasLabels(subresource string) bool {
	//nolint:misspell // Names of Kubernetes.
	own := []string{"", string(core.FieldStatus), "approval", "ephemeralcontainers", "finalize", "resize"}
	return slices.Contains(own, subresource)
}

// problems are in the order of the keys. The parameter begins each.
func (s Selector) problems(what string) (problems []error) {
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		label := Requirement{Key: key, Operator: "In", Values: []string{s.Labels[key]}}
		problems = append(problems, label.problems(what)...)
	}

	for _, r := range s.Requirements {
		problems = append(problems, r.problems(what)...)
	}
	return problems
}

func (r *Requirement) problems(what string) []error {
	what = fmt.Sprintf("%s %.80q", what, r.Key)
	needsValues := r.Operator == "In" || r.Operator == "NotIn"

	problems := []error{
		option.Unless(dns1123.IsQualifiedName(r.Key), "%s: want [<DNS-1123 subdomain>/]<name>", what),
		option.Unless(needsValues || r.Operator == "Exists" || r.Operator == "DoesNotExist",
			"%s: %.80q is not a valid label selector operator", what, r.Operator),
		option.Unless(needsValues == (len(r.Values) > 0), "%s: want values for In and NotIn only, have %d for %.80q",
			what, len(r.Values), r.Operator),
	}

	for _, value := range r.Values {
		problems = append(problems, option.Unless(isLabelValue(value), "%s: %.80q is not a label value", what, value))
	}
	return problems
}

func isLabelValue(text string) bool { return text == "" || dns1123.IsName(text) }

// conditionProblems refuses the names of the conditions that the webhook of each watch has.
func (w *Watch) conditionProblems() (problems []error) {
	names := []string{"persisted", "changed"}
	for _, c := range w.Conditions {
		problems = append(problems,
			option.Unless(dns1123.IsLabel(c.Name), "condition %.80q: want a DNS-1123 label as name", c.Name),
			option.Unless(!slices.Contains(names, c.Name), "condition %.80q: want a unique name", c.Name),
			option.Unless(c.Expression != "", "condition %.80q: want an expression", c.Name))
		names = append(names, c.Name)
	}
	return problems
}
