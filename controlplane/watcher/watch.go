package watcher

import (
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/condition"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// Errors of a Watcher without a manager, or with one that cannot be part of a URL.
var (
	errNoManager      = errors.New("want spec.manager, or the label " + v1beta2.ManagedByLabel + ", have neither")
	errInvalidManager = errors.New("want a DNS-1123 label as manager")
)

// managerOf returns the manager that gets the events of a Watcher.
func managerOf(w *v1beta2.Watcher) (core.Manager, error) {
	name := w.ManagerName()
	if name == "" {
		return "", errNoManager
	}
	manager, err := core.ParseManager(name)
	if err != nil {
		return "", fmt.Errorf("%w, have %.80q in spec.manager or the label %s",
			errInvalidManager, name, v1beta2.ManagedByLabel)
	}
	return manager, nil
}

// watchOf returns the watch of a Watcher. Its error wraps [admission.ErrInvalidConfiguration] when
// the Watcher was stored before its definition had its rules.
func watchOf(w *v1beta2.Watcher) (admission.Watch, error) {
	manager, err := managerOf(w)
	if err != nil {
		return admission.Watch{}, fmt.Errorf("watcher %s/%s: %w", w.Namespace, w.Name, err)
	}

	resource := w.Spec.ResourceToWatch
	watch := admission.Watch{
		Name:    types.NamespacedName{Namespace: w.Namespace, Name: w.Name},
		Manager: manager,
		Resource: schema.GroupVersionResource{
			Group: resource.Group, Version: resource.Version, Resource: resource.Resource,
		},
		Kind:              resource.Kind,
		Labels:            plain(w.Spec.LabelsToWatch),
		LabelExpressions:  requirements(w.Spec.LabelExpressionsToWatch),
		NamespaceSelector: namespaceSelector(w.Spec.NamespaceSelector),
		Field:             core.Field(w.Spec.Field),
	}

	if err := watch.Validate(); err != nil {
		return admission.Watch{}, fmt.Errorf("watcher %s/%s: %w", w.Namespace, w.Name, err)
	}

	return watch, nil
}

// conditionsOf returns the conditions of a Watcher in a form that never fails. Invalid conditions
// are left out, and the error joins the reasons. It wraps [admission.ErrInvalidConfiguration].
func conditionsOf(w *v1beta2.Watcher) (conditions []admissionregistrationv1.MatchCondition, err error) {
	for _, written := range w.Spec.MatchConditions {
		total, invalid := condition.Total(written.Expression)
		if invalid != nil {
			err = errors.Join(err, fmt.Errorf("watcher %s/%s: %w: spec.matchConditions[%s].expression: %w",
				w.Namespace, w.Name, admission.ErrInvalidConfiguration, written.Name, invalid))
			continue
		}
		conditions = append(conditions, admissionregistrationv1.MatchCondition{Name: written.Name, Expression: total})
	}
	return conditions, err
}

// Watches returns the watches of all Watchers that are not being deleted. Invalid Watchers are left
// out, and so are invalid conditions of valid ones. The error joins the reasons. Each reason that
// is about a watch wraps [admission.ErrInvalidConfiguration].
func Watches(watchers []v1beta2.Watcher) ([]admission.Watch, error) {
	var (
		watches  []admission.Watch
		problems []error
	)

	for i := range watchers {
		if !watchers[i].DeletionTimestamp.IsZero() {
			continue
		}

		watch, err := watchOf(&watchers[i])
		if err != nil {
			problems = append(problems, err)
			continue
		}

		// Without the invalid condition, a watch reports too much, and loses nothing.
		if watch.Conditions, err = conditionsOf(&watchers[i]); err != nil {
			problems = append(problems, err)
		}
		watches = append(watches, watch)
	}
	return watches, errors.Join(problems...)
}

// requirements returns nil for none, as an API server does.
func requirements(of []v1beta2.LabelRequirement) (all []metav1.LabelSelectorRequirement) {
	for _, r := range of {
		requirement := metav1.LabelSelectorRequirement{Key: r.Key, Operator: r.Operator}
		for _, value := range r.Values {
			requirement.Values = append(requirement.Values, string(value))
		}
		all = append(all, requirement)
	}
	return all
}

func namespaceSelector(of *v1beta2.NamespaceSelector) *metav1.LabelSelector {
	if of == nil {
		return nil
	}
	return labelSelector(of.MatchLabels, of.MatchExpressions)
}

func labelSelector(
	matchLabels map[string]v1beta2.LabelValue, matchExpressions []v1beta2.LabelRequirement,
) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: plain(matchLabels), MatchExpressions: requirements(matchExpressions)}
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
