package watcher

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/condition"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
)

// documentKind is the kind that the text form requires, regardless of the kind of the custom
// resource.
const documentKind = "Watcher"

func managerOf(w *v1beta2.Watcher, n names.Names) (core.Manager, error) {
	name := managerName(w, n)
	if name == "" {
		return "", problem(v1beta2.ReasonManagerMissing, "want spec.manager, or the label %s, have neither", n.ManagedBy())
	}

	manager, err := core.ParseManager(name)
	if err != nil {
		return "", problem(v1beta2.ReasonManagerInvalid, "want a DNS-1123 label as manager, have %.80q in spec.manager or the label %s",
			name, n.ManagedBy())
	}

	return manager, nil
}

func managerName(w *v1beta2.Watcher, n names.Names) string {
	return cmp.Or(w.Spec.Manager, w.Labels[n.ManagedBy()])
}

// watchOf returns the watch without its invalid conditions. The warnings name these conditions. The
// reconciler of Watchers and Watches call it.
func watchOf(w *v1beta2.Watcher, n names.Names) (found watch.Watch, warnings, err error) {
	manager, err := managerOf(w, n)
	if err != nil {
		return watch.Watch{}, nil, fmt.Errorf("watcher %s/%s: %w", w.Namespace, w.Name, err)
	}

	found, err = decodeWatch(w)
	if err != nil {
		return watch.Watch{}, nil, fmt.Errorf("watcher %s/%s: %w", w.Namespace, w.Name, err)
	}

	found.Manager = manager
	found.Conditions, warnings = conditionsOf(w)
	invalid := found.Validate() // An older CRD may have admitted it.
	tooLong := checkNameLength(w, n)
	if err := errors.Join(invalid, tooLong); err != nil {
		return watch.Watch{}, nil, fmt.Errorf("watcher %s/%s: %w", w.Namespace, w.Name, err)
	}

	return found, warnings, nil
}

// checkNameLength refuses names that are too long for a webhook. An API server would refuse such a
// webhook together with all other webhooks of a runtime.
func checkNameLength(w *v1beta2.Watcher, n names.Names) error {
	have := len(w.Namespace) + len(w.Name)
	most := n.MaxName()
	if have > most {
		return fmt.Errorf("%w: namespace and name have %d characters, want at most %d", watch.ErrInvalid, have, most)
	}
	return nil
}

// decodeWatch converts a Watcher by its JSON, which is the text form of a watch.
func decodeWatch(w *v1beta2.Watcher) (watch.Watch, error) {
	text, err := json.Marshal(w)
	if err != nil {
		return watch.Watch{}, err
	}

	var document watch.Document
	err = json.Unmarshal(text, &document)
	document.Kind = documentKind // A client may leave it out, and an operator may have another kind.
	watches, mismatch := document.Watches()
	if err := errors.Join(err, mismatch); err != nil {
		return watch.Watch{}, err
	}

	return watches[0], nil // One document gives one watch.
}

// conditionsOf leaves out invalid conditions, and joins the reasons.
func conditionsOf(w *v1beta2.Watcher) (conditions []watch.Condition, err error) {
	for _, written := range w.Spec.MatchConditions {
		total, invalid := condition.Total(written.Expression)
		if invalid != nil {
			err = errors.Join(err, fmt.Errorf("watcher %s/%s: %w: spec.matchConditions[%s].expression: %w",
				w.Namespace, w.Name, watch.ErrInvalid, written.Name, invalid))
			continue
		}

		conditions = append(conditions, watch.Condition{Name: written.Name, Expression: total})
	}
	return conditions, err
}

// Watches returns the watches of all Watchers that are not being deleted. It omits invalid
// Watchers, invalid conditions of valid Watchers, and the youngest managers beyond the limit of an
// agent. The error joins the reasons. Each reason that concerns a watch wraps [watch.ErrInvalid].
// The argument n determines the label of a manager.
func Watches(watchers []v1beta2.Watcher, n names.Names) ([]watch.Watch, error) {
	var (
		watches  []watch.Watch
		problems []error
		first    = make(map[core.Manager]*v1beta2.Watcher) // the oldest of each manager
	)
	for i := range watchers {
		if !watchers[i].DeletionTimestamp.IsZero() {
			continue
		}

		// Without the invalid condition, a watch reports too much, and loses nothing.
		found, warnings, err := watchOf(&watchers[i], n)
		problems = append(problems, err, warnings)
		if err != nil {
			continue
		}

		watches = append(watches, found)
		if known := first[found.Manager]; known == nil || byAge(&watchers[i], known) < 0 {
			first[found.Manager] = &watchers[i]
		}
	}

	if beyond := beyondMost(first); len(beyond) > 0 {
		problems = append(problems,
			fmt.Errorf("managers %v are left out: an agent knows at most %d", beyond, defaults.MaxManagers))
		watches = slices.DeleteFunc(watches, func(w watch.Watch) bool { return slices.Contains(beyond, w.Manager) })
	}
	return watches, errors.Join(problems...)
}

// beyondMost returns the youngest managers beyond those that an agent accepts.
func beyondMost(first map[core.Manager]*v1beta2.Watcher) []core.Manager {
	managers := slices.SortedFunc(maps.Keys(first), func(a, b core.Manager) int { return byAge(first[a], first[b]) })
	return managers[min(len(managers), defaults.MaxManagers):]
}

// byAge compares names when both were created in the same second.
func byAge(a, b *v1beta2.Watcher) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
}
