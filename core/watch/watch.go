// Package watch defines the common form of a watch in a runtime. [Document] is its text form, and
// [Validate] validates it. The change sources are derived from it: the webhook configuration of
// adapters/admission and the source of adapters/informer.
package watch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// AnyVersion matches each version of a resource.
const AnyVersion = "*"

// Watch is a set of objects to watch in a runtime for one manager.
type Watch struct {
	// Name identifies the watch and must be unique. The webhook of the watch is named after it.
	Name types.NamespacedName
	// Manager gets the events.
	Manager core.Manager
	// Resource is the resource to watch. Its Group is "" for the core API, and its Version may be
	// [AnyVersion]. Its Resource may have a subresource, such as "pods/eviction", but not the
	// status. Only a webhook sees writes to a subresource.
	Resource schema.GroupVersionResource
	// Kind is the kind of the resource without its subresource. Events of subresources name it,
	// because a review contains the kind of the subresource, such as Scale. Default: the kind of a
	// resource that is built into Kubernetes, and empty for any other resource.
	Kind string
	// Selector selects objects by their labels, before or after the change. Reviews of most
	// subresources show no labels, so a watch of such a subresource must not select labels. Scale
	// never has labels: each write to it counts. Default: every object.
	Selector Selector
	// NamespaceSelector selects the namespaces of objects by their labels. Objects without a
	// namespace are watched, except Namespaces that the selector does not select. Default: all
	// namespaces.
	NamespaceSelector Selector
	// Conditions must all be true for a write. The API server evaluates them, so they apply only to
	// a webhook. Default: none.
	Conditions []Condition
	// Field is the watched part of the object: [core.FieldSpec] or [core.FieldStatus]. With
	// [core.FieldSpec], changes through the scale subresource also count. Default:
	// [core.FieldSpec].
	Field core.Field
}

// Condition is a CEL expression, as in a webhook configuration. If the evaluation fails for a
// write, the API server skips the webhook, so the expression must be valid for every write.
type Condition struct {
	// Name is a DNS-1123 label for messages. The names "persisted" and "changed" are reserved.
	Name string `json:"name"`
	// Expression has the variables object, oldObject and request.
	Expression string `json:"expression"`
}

// Selector selects objects by their labels. The zero value selects every object. Its JSON form is
// the form of a metav1.LabelSelector.
type Selector struct {
	// Labels must all be set on the object. Default: none.
	Labels map[string]string `json:"matchLabels,omitempty"`
	// Requirements must all be met. Default: none.
	Requirements []Requirement `json:"matchExpressions,omitempty"`
}

// Requirement is a requirement that the labels of an object must meet.
type Requirement struct {
	// Key is the key of the label.
	Key string `json:"key"`
	// Operator is "In", "NotIn", "Exists" or "DoesNotExist".
	Operator string `json:"operator"`
	// Values are only for "In" and "NotIn".
	Values []string `json:"values,omitempty"`
}

// IsZero reports whether every object is selected.
func (s Selector) IsZero() bool { return len(s.Labels)+len(s.Requirements) == 0 }

// Document is the text form of watches: the JSON of a Watcher, or of a list of Watchers, with the
// fields that define a watch. Any API group is accepted, because operators choose their own.
// [json.Unmarshal] ignores all other fields; [ParseDocument] rejects any field that a Watcher does
// not have.
type Document struct {
	Kind     string     `json:"kind"`
	Metadata metadata   `json:"metadata,omitzero"`
	Spec     spec       `json:"spec,omitzero"`
	Items    []Document `json:"items,omitempty"`
}

type metadata struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// spec is the part of a Watcher that a watch consists of, as in the text form.
type spec struct {
	Manager                 string            `json:"manager"`
	ResourceToWatch         resource          `json:"resourceToWatch"`
	LabelsToWatch           map[string]string `json:"labelsToWatch,omitempty"`
	LabelExpressionsToWatch []Requirement     `json:"labelExpressionsToWatch,omitempty"`
	NamespaceSelector       Selector          `json:"namespaceSelector,omitzero"`
	MatchConditions         []Condition       `json:"matchConditions,omitempty"`
	Field                   core.Field        `json:"field,omitempty"`
}

type resource struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
	Kind     string `json:"kind,omitempty"`
}

const (
	kindWatcher = "Watcher"
	kindList    = "List"
	// managedByLabel names the manager of a Watcher without spec.manager, with the default names. A
	// text that an agent gets from an operator with other names has spec.manager.
	managedByLabel = "operator.kyma-project.io/managed-by"
	// defaultNamespace is the namespace of a Watcher that names no namespace.
	defaultNamespace = "default"
)

// DocumentOf returns a list of Watchers, sorted by name. It shares memory with watches.
func DocumentOf(watches []Watch) Document {
	list := Document{Kind: kindWatcher + kindList}
	for n := range watches {
		w := &watches[n]
		r := &watches[n].Resource
		list.Items = append(list.Items, Document{
			Kind:     kindWatcher,
			Metadata: metadata{Namespace: w.Name.Namespace, Name: w.Name.Name},
			Spec: spec{
				Manager:         string(w.Manager),
				ResourceToWatch: resource{Group: r.Group, Version: r.Version, Resource: r.Resource, Kind: w.Kind},
				LabelsToWatch:   w.Selector.Labels, LabelExpressionsToWatch: w.Selector.Requirements,
				NamespaceSelector: w.NamespaceSelector, MatchConditions: w.Conditions, Field: w.Field,
			},
		})
	}

	slices.SortStableFunc(list.Items, func(a, b Document) int {
		return strings.Compare(a.Metadata.Namespace+"/"+a.Metadata.Name, b.Metadata.Namespace+"/"+b.Metadata.Name)
	})
	return list
}

// Watches returns the watches, which may be invalid. An operator may use a kind other than Watcher
// for them. Watches returns an error for a document that is neither a Watcher nor a list and has no
// spec.resourceToWatch.
func (d *Document) Watches() (all []Watch, err error) {
	isList := strings.HasSuffix(d.Kind, kindList)
	if !isList {
		if d.Kind != kindWatcher && d.Spec.ResourceToWatch == (resource{}) {
			return nil, fmt.Errorf("kind %.63q without spec.resourceToWatch: want a %s", d.Kind, kindWatcher)
		}
		return []Watch{d.watch()}, nil
	}

	for i := range d.Items {
		found, err := d.Items[i].Watches()
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func (d *Document) watch() Watch {
	s := &d.Spec
	r := &d.Spec.ResourceToWatch
	return Watch{
		Name: types.NamespacedName{
			Namespace: cmp.Or(d.Metadata.Namespace, defaultNamespace), Name: d.Metadata.Name,
		},
		Manager:           core.Manager(cmp.Or(s.Manager, d.Metadata.Labels[managedByLabel])),
		Resource:          schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource},
		Kind:              r.Kind,
		Selector:          Selector{Labels: s.LabelsToWatch, Requirements: s.LabelExpressionsToWatch},
		NamespaceSelector: s.NamespaceSelector,
		Conditions:        s.MatchConditions,
		Field:             s.Field,
	}
}
