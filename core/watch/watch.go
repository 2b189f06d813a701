// Package watch has the one form of a watch in a runtime. [Document] is its text form, and
// [Validate] its validation. The sources of changes are made from it: the webhook configuration of
// adapters/admission, and the source of adapters/informer.
package watch

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// AnyVersion stands for each version of a resource.
const AnyVersion = "*"

// Watch is a set of objects to watch in a runtime for one manager.
type Watch struct {
	// Name identifies the watch, and must be unique. The webhook of the watch is named after it.
	Name types.NamespacedName
	// Manager gets the events.
	Manager core.Manager
	// Resource is the resource to watch. Its Group is "" for the core API, and its Version may be
	// [AnyVersion]. Its Resource may have a subresource, such as "pods/eviction", but not the
	// status. A webhook alone sees a subresource.
	Resource schema.GroupVersionResource
	// Kind is the kind of the resource without its subresource. Events of subresources name it,
	// because a review has the kind of the subresource, such as Scale. Default: that of a resource
	// of Kubernetes, and none for any other.
	Kind string
	// Selector selects objects by their labels, before or after the change. Most subresources show
	// no labels, so a watch of them must have none. Scale never has them: each write to it counts.
	// Default: every object.
	Selector Selector
	// NamespaceSelector selects the namespaces of objects by their labels. Objects without a
	// namespace are watched, except Namespaces that it does not select. Default: all namespaces.
	NamespaceSelector Selector
	// Conditions must all be true for a write. The API server evaluates them, so a webhook alone
	// has them. Default: none.
	Conditions []Condition
	// Field is the watched part of the object: [core.FieldSpec] or [core.FieldStatus]. With
	// [core.FieldSpec], changes through the scale subresource count, too. Default:
	// [core.FieldSpec].
	Field core.Field
}

// Condition is a CEL expression, as in a webhook configuration. An API server skips a write for
// which it fails, so it must be defined for every write.
type Condition struct {
	// Name is a DNS-1123 label for messages. The names "persisted" and "changed" are reserved.
	Name string `json:"name"`
	// Expression has the variables object, oldObject and request.
	Expression string `json:"expression"`
}

// Selector selects objects by their labels. The zero value selects every object. Its JSON is that
// of a metav1.LabelSelector.
type Selector struct {
	// Labels must all be there. Default: none.
	Labels map[string]string `json:"matchLabels,omitempty"`
	// Requirements must all be met. Default: none.
	Requirements []Requirement `json:"matchExpressions,omitempty"`
}

// Requirement is one that the labels of an object must meet.
type Requirement struct {
	// Key is that of the label.
	Key string `json:"key"`
	// Operator is "In", "NotIn", "Exists" or "DoesNotExist".
	Operator string `json:"operator"`
	// Values are for "In" and "NotIn" only.
	Values []string `json:"values,omitempty"`
}

// IsZero reports whether every object is selected.
func (s Selector) IsZero() bool { return len(s.Labels)+len(s.Requirements) == 0 }
