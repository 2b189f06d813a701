package webhookconfig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// watcher has the fields of a Watcher (operator.kyma-project.io/v1beta2) that define its watch. The
// typed API is in controlplane, which needs more than an agent may link.
type watcher struct {
	metav1.TypeMeta `json:",inline"`

	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Manager         string            `json:"manager"`
		LabelsToWatch   map[string]string `json:"labelsToWatch"`
		Field           core.Field        `json:"field"`
		ResourceToWatch struct {
			Group    string `json:"group"`
			Version  string `json:"version"`
			Resource string `json:"resource"`
			Kind     string `json:"kind"`
		} `json:"resourceToWatch"`
		LabelExpressionsToWatch []metav1.LabelSelectorRequirement `json:"labelExpressionsToWatch"`
		NamespaceSelector       *metav1.LabelSelector             `json:"namespaceSelector"`
		MatchConditions         []struct {
			Name string `json:"name"`
		} `json:"matchConditions"`
	} `json:"spec"`

	// Items are those of a list, as kubectl get -o yaml prints it.
	Items []watcher `json:"items"`
}

const (
	kindWatcher    = "Watcher"
	kindList       = "List"
	managedByLabel = "operator.kyma-project.io/managed-by"
)

// ReadWatchers reads Watchers in YAML documents or lists. Other kinds are refused.
func ReadWatchers(from io.Reader) ([]admission.Watch, error) {
	text, err := io.ReadAll(from)
	if err != nil {
		return nil, err
	}

	var watches []admission.Watch

	for document := range bytes.SplitSeq(text, []byte("\n---")) {
		if len(bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(document), []byte("---")))) == 0 {
			continue
		}

		var w watcher
		if err := yaml.Unmarshal(document, &w); err != nil {
			return nil, err
		}

		found, err := w.watches()
		if err != nil {
			return nil, err
		}

		watches = append(watches, found...)
	}

	return watches, nil
}

func (w *watcher) watches() (all []admission.Watch, err error) {
	switch w.Kind {
	case kindWatcher:
		if len(w.Spec.MatchConditions) > 0 {
			return nil, fmt.Errorf("watcher %.80q: want no spec.matchConditions: a condition that fails loses "+
				"writes, and only an installer in the control plane guards them", w.Metadata.Name)
		}
		return []admission.Watch{w.watch()}, nil
	case kindList, kindWatcher + kindList:
	default:
		return nil, fmt.Errorf("kind %.63q: want %s", w.Kind, kindWatcher)
	}
	for i := range w.Items {
		found, err := w.Items[i].watches()
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func (w *watcher) watch() admission.Watch {
	r := w.Spec.ResourceToWatch
	namespace := cmp.Or(w.Metadata.Namespace, metav1.NamespaceDefault)
	return admission.Watch{
		Name:     types.NamespacedName{Namespace: namespace, Name: w.Metadata.Name},
		Manager:  core.Manager(cmp.Or(w.Spec.Manager, w.Metadata.Labels[managedByLabel])),
		Resource: schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource},
		Kind:     r.Kind,
		Labels:   w.Spec.LabelsToWatch,
		Field:    w.Spec.Field,

		LabelExpressions:  w.Spec.LabelExpressionsToWatch,
		NamespaceSelector: w.Spec.NamespaceSelector,
	}
}

// oneWatch is the watch of --manager and --resource. Its error names all mistakes.
func (s *settings) oneWatch() ([]admission.Watch, error) {
	if s.manager == "" || s.resource == "" {
		return nil, errors.New("-f, or --manager and --resource: want Watchers or one watch")
	}

	resource, resourceErr := parseResource(s.resource)
	labels, labelsErr := parseLabels(s.labels)
	_, managerErr := core.ParseManager(s.manager)

	if err := errors.Join(managerErr, resourceErr, labelsErr, checkField(s.field)); err != nil {
		return nil, err
	}

	return []admission.Watch{{
		Name:     types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: s.manager},
		Manager:  core.Manager(s.manager),
		Resource: resource,
		Labels:   labels,
		Field:    core.Field(s.field),
	}}, nil
}
