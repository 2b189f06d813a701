package informer

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// Validate returns all problems of a watch, joined: those of [watch.Watch.Validate], and parts that
// only a webhook can watch. The error wraps [watch.ErrInvalid].
func Validate(w *watch.Watch) error { return errors.Join(w.Validate(), unsupported(w)) }

func unsupported(w *watch.Watch) error {
	var problems []error
	refuse := func(format string, args ...any) {
		problems = append(problems,
			fmt.Errorf("%w %.330q: want "+format, append([]any{watch.ErrInvalid, w.Name.String()}, args...)...))
	}
	if strings.Contains(w.Resource.Resource, "/") {
		refuse("a resource without subresource, have %.80q", w.Resource.Resource)
	}
	if len(w.Conditions) > 0 {
		refuse("no conditions, which only an API server evaluates, have %d", len(w.Conditions))
	}
	return errors.Join(problems...)
}

// watched is a valid watch with its selectors.
type watched struct {
	watch.Watch

	// name identifies the watch in logs and errors.
	name string
	// objects is applied by the API server, namespaces by the source.
	objects, namespaces labels.Selector
	// within is the only namespace, if there is one, and without those that are left out.
	within  string
	without []string
}

func newWatched(w watch.Watch, opts *Options) *watched {
	w.Field = cmp.Or(w.Field, core.FieldSpec)
	return &watched{
		Watch: w, name: w.Name.String(),
		objects: selectorOf(w.Selector), namespaces: selectorOf(w.NamespaceSelector),
		within: opts.Namespace, without: opts.ExcludedNamespaces,
	}
}

// selectorOf copies a valid selector.
func selectorOf(s watch.Selector) labels.Selector {
	selector := labels.SelectorFromSet(s.Labels)
	for _, r := range s.Requirements {
		operators := map[string]selection.Operator{
			"In": selection.In, "NotIn": selection.NotIn,
			"Exists": selection.Exists, "DoesNotExist": selection.DoesNotExist,
		}
		requirement, _ := labels.NewRequirement(r.Key, operators[r.Operator], r.Values) // Validated.
		selector = selector.Add(*requirement)
	}
	return selector
}
