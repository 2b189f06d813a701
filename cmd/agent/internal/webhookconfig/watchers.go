package webhookconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// ReadWatchers reads Watchers in YAML documents or lists. Other kinds are refused, and conditions,
// which the code in the control plane alone can check.
func ReadWatchers(from io.Reader) (watches []watch.Watch, err error) {
	text, err := io.ReadAll(from)
	if err != nil {
		return nil, err
	}
	for part := range bytes.SplitSeq(text, []byte("\n---")) {
		if len(bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(part), []byte("---")))) == 0 {
			continue
		}
		var document watch.Document
		if err := yaml.Unmarshal(part, &document); err != nil {
			return nil, err
		}
		found, err := document.Watches()
		if err != nil {
			return nil, err
		}
		watches = append(watches, found...)
	}
	return watches, withoutConditions(watches)
}

func withoutConditions(watches []watch.Watch) error {
	var problems []error
	for _, w := range watches {
		if len(w.Conditions) > 0 {
			problems = append(problems, fmt.Errorf("watcher %.80q: want no spec.matchConditions: a condition that "+
				"fails loses writes, and only an installer in the control plane guards them", w.Name.Name))
		}
	}
	return errors.Join(problems...)
}

// oneWatch is the watch of --manager and --resource. Its error names all mistakes.
func (s *settings) oneWatch() ([]watch.Watch, error) {
	if s.manager == "" || s.resource == "" {
		return nil, errors.New("-f, or --manager and --resource: want Watchers or one watch")
	}
	resource, resourceErr := parseResource(s.resource)
	manager, managerErr := core.ParseManager(s.manager)
	if err := errors.Join(managerErr, resourceErr); err != nil {
		return nil, err
	}
	return []watch.Watch{{
		Name:    types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: s.manager},
		Manager: manager, Resource: resource, Field: core.FieldSpec,
	}}, nil
}
