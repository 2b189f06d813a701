package informer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// ErrInvalidWatch means that a [Watch] cannot work in any cluster.
var ErrInvalidWatch = errors.New("invalid watch")

// anyVersion is the version that the API server prefers.
const anyVersion = "*"

// Watch is a set of objects to watch in a runtime for one manager.
type Watch struct {
	// Name identifies the watch in logs and errors, and must be unique.
	Name string
	// Manager gets the events.
	Manager core.Manager
	// Resource is the resource to watch. Its Group is "" for the core API. A Version of "*" is the
	// one that the API server prefers. A subresource cannot be watched.
	Resource schema.GroupVersionResource
	// Namespace is the only namespace to watch, so that a Role is enough. Default: all namespaces,
	// and objects without namespace.
	Namespace string
	// ExcludedNamespaces are not watched. The API server leaves them out. Default: none.
	ExcludedNamespaces []string
	// Selector selects objects by their labels. The API server applies it. An object that begins or
	// stops to match counts as created or deleted. Default: every object.
	Selector *metav1.LabelSelector
	// NamespaceSelector selects the namespaces of objects by their labels. It needs the right to
	// list and watch namespaces. Objects without a namespace are watched, except Namespaces that it
	// does not select. Default: all namespaces.
	NamespaceSelector *metav1.LabelSelector
	// Field is the watched part of the object: [core.FieldSpec] or [core.FieldStatus]. Default:
	// [core.FieldSpec].
	Field core.Field
	// Filter decides which changes matter. It gets digests: both states of a [core.Change] have
	// labels, finalizers, generation, deletion timestamp and [core.OwnerAnnotation]. A watched
	// field is replaced by a text that differs if the field does. It must not panic. Default:
	// [core.Changed].
	Filter core.Filter
}

// withDefaults returns a copy with all defaults set.
func (w *Watch) withDefaults() *Watch {
	c := *w
	c.ExcludedNamespaces = slices.Compact(slices.Sorted(slices.Values(w.ExcludedNamespaces)))
	c.Selector = w.Selector.DeepCopy()
	c.NamespaceSelector = w.NamespaceSelector.DeepCopy()
	if c.Field == "" {
		c.Field = core.FieldSpec
	}
	if c.Filter == nil {
		c.Filter = core.Changed
	}
	return &c
}

// Validate returns all problems of the watch, joined. The error wraps [ErrInvalidWatch].
func (w *Watch) Validate() error {
	_, invalidManager := core.ParseManager(string(w.Manager))
	err := errors.Join(
		invalidManager,
		want(w.Name != "", "a name"),
		want(w.Field == "" || w.Field == core.FieldSpec || w.Field == core.FieldStatus,
			"%q or %q as field, have %.40q", core.FieldSpec, core.FieldStatus, w.Field),
		want(isSegment(w.Resource.Resource),
			"a resource by its plural name, without subresource, have %.80q", w.Resource.Resource),
		want(w.Resource.Group == "" || isSegment(w.Resource.Group), "a group, have %.80q", w.Resource.Group),
		want(w.Resource.Version == anyVersion || isSegment(w.Resource.Version),
			"a version or %q, have %.80q", anyVersion, w.Resource.Version),
		want(w.Namespace == "" || isSegment(w.Namespace), "a namespace, have %.80q", w.Namespace),
		selectorProblem(w.Selector),
		selectorProblem(w.NamespaceSelector),
	)
	if err != nil {
		return fmt.Errorf("%w %.330q: %w", ErrInvalidWatch, w.Name, err)
	}
	return nil
}

// isSegment reports whether text is a segment of a URL path, as in DNS-1123 subdomains.
func isSegment(text string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyz0123456789-."
	return text != "" && text[0] != '.' &&
		!strings.ContainsFunc(text, func(r rune) bool { return !strings.ContainsRune(allowed, r) })
}

func want(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("want "+format, args...)
}

func selectorProblem(selector *metav1.LabelSelector) error {
	if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
		return fmt.Errorf("selector: %w", err)
	}
	return nil
}

// selectorOf returns the selector, and one for everything if there is none. It was validated.
func selectorOf(selector *metav1.LabelSelector) labels.Selector {
	if selector == nil {
		return labels.Everything()
	}
	parsed, _ := metav1.LabelSelectorAsSelector(selector) // Validated.
	return parsed
}
