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

// Document is the text form of watches: the JSON of a Watcher (operator.kyma-project.io/v1beta2),
// or of a list of them. It has the fields that define a watch. All others are ignored.
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
	// managedByLabel names the manager of a Watcher without spec.manager.
	managedByLabel = "operator.kyma-project.io/managed-by"
	// defaultNamespace is that of a Watcher without one.
	defaultNamespace = "default"
)

// DocumentOf returns a list of Watchers, sorted by name. It refers to the watches.
func DocumentOf(watches []Watch) Document {
	list := Document{Kind: kindWatcher + kindList}
	for n := range watches {
		list.Items = append(list.Items, documentOf(&watches[n]))
	}
	slices.SortStableFunc(list.Items, func(a, b Document) int {
		return strings.Compare(a.Metadata.Namespace+"/"+a.Metadata.Name, b.Metadata.Namespace+"/"+b.Metadata.Name)
	})
	return list
}

func documentOf(w *Watch) Document {
	return Document{
		Kind:     kindWatcher,
		Metadata: metadata{Namespace: w.Name.Namespace, Name: w.Name.Name},
		Spec: spec{
			Manager: string(w.Manager),
			ResourceToWatch: resource{
				Group: w.Resource.Group, Version: w.Resource.Version, Resource: w.Resource.Resource, Kind: w.Kind,
			},
			LabelsToWatch: w.Selector.Labels, LabelExpressionsToWatch: w.Selector.Requirements,
			NamespaceSelector: w.NamespaceSelector, MatchConditions: w.Conditions, Field: w.Field,
		},
	}
}

// Watches returns the watches, which may be invalid, and refuses other kinds.
func (d *Document) Watches() (all []Watch, err error) {
	switch d.Kind {
	case kindWatcher:
		return []Watch{d.watch()}, nil
	case kindList, kindWatcher + kindList:
	default:
		return nil, fmt.Errorf("kind %.63q: want %s", d.Kind, kindWatcher)
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
	s, r := &d.Spec, &d.Spec.ResourceToWatch
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
