package watcher

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// Errors of a Watcher that names no manager, or none that can be in the path of a URL.
var (
	ErrNoManager      = errors.New("want spec.manager, or the label " + v1beta2.ManagedByLabel + ", have neither")
	ErrInvalidManager = errors.New("want a DNS-1123 label as manager")
)

// Manager returns who gets the events of a Watcher. Its error is [ErrNoManager] or wraps [ErrInvalidManager].
func Manager(w *v1beta2.Watcher) (core.Manager, error) {
	name := w.ManagerName()
	if name == "" {
		return "", ErrNoManager
	}

	manager, err := core.ParseManager(name)
	if err != nil {
		return "", fmt.Errorf("%w, have %.80q in spec.manager or the label %s", ErrInvalidManager, name, v1beta2.ManagedByLabel)
	}

	return manager, nil
}

// Watch returns what the agents watch for a Watcher. Its error is that of [Manager], or wraps [admission.ErrInvalidConfiguration]: a Watcher
// may have been stored before its definition had its rules.
func Watch(w *v1beta2.Watcher) (admission.Watch, error) {
	manager, err := Manager(w)
	if err != nil {
		return admission.Watch{}, fmt.Errorf("watcher %s/%s: %w", w.Namespace, w.Name, err)
	}

	watch := admission.Watch{
		Name:    types.NamespacedName{Namespace: w.Namespace, Name: w.Name},
		Manager: manager,
		Resource: schema.GroupVersionResource{
			Group: w.Spec.ResourceToWatch.Group, Version: w.Spec.ResourceToWatch.Version, Resource: w.Spec.ResourceToWatch.Resource,
		},
		Labels: plain(w.Spec.LabelsToWatch),
		Field:  core.Field(w.Spec.Field),
	}

	if err := watch.Validate(); err != nil {
		return admission.Watch{}, fmt.Errorf("watcher %s/%s: %w", w.Namespace, w.Name, err)
	}

	return watch, nil
}

// Watches returns what the agents watch for all Watchers that are not being deleted, and, joined, what is wrong with the others: one
// that is wrong must not keep the rest from being watched.
func Watches(watchers []v1beta2.Watcher) ([]admission.Watch, error) {
	var (
		watches  []admission.Watch
		problems []error
	)

	for i := range watchers {
		if !watchers[i].DeletionTimestamp.IsZero() {
			continue
		}

		watch, err := Watch(&watchers[i])
		if err != nil {
			problems = append(problems, err)

			continue
		}

		watches = append(watches, watch)
	}

	return watches, errors.Join(problems...)
}

func plain(labels map[string]v1beta2.LabelValue) map[string]string {
	if labels == nil {
		return nil
	}

	texts := make(map[string]string, len(labels))
	for key, value := range labels {
		texts[key] = string(value)
	}

	return texts
}
