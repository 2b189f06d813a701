package simulation

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// teamLabel selects objects. Its value is a manager, or everybody for both.
const (
	teamLabel              = "example.com/team"
	everybody core.Manager = "everybody"
)

// teamOf returns the first team of an object. Of two managers, each also watches objects alone.
func teamOf(object int) core.Manager { return []core.Manager{everybody, "alpha", "beta"}[object%3] }

// nextTeam returns the team after a change of the label.
func nextTeam(team core.Manager) core.Manager {
	return map[core.Manager]core.Manager{everybody: "alpha", "alpha": "beta", "beta": everybody}[team]
}

// selects reports whether watches select objects by their team.
func (p *Plan) selects() bool { return p.Selective || len(p.Managers) > 1 }

// isWatched reports whether a manager watches the objects of a team.
func (p *Plan) isWatched(team, manager core.Manager) bool {
	return !p.selects() || team == everybody || team == manager
}

// watching returns the managers that must learn of a change.
func (p *Plan) watching(before, after object) (all []core.Manager) {
	for _, manager := range p.Managers {
		part := before.version != after.version
		if manager == p.Status || before.status != after.status {
			part = manager == p.Status && before.status != after.status
		}
		if part && (before.exists && p.isWatched(before.team, manager) || after.exists && p.isWatched(after.team, manager)) {
			all = append(all, manager)
		}
	}
	return all
}

// watches returns those of the managers.
func (p *Plan) watches() (all []watch.Watch) {
	for _, manager := range p.Managers {
		w := watchOf(manager)
		if p.selects() {
			w.Selector.Requirements = []watch.Requirement{{Key: teamLabel, Operator: "In", Values: []string{string(everybody), string(manager)}}}
		}
		if manager == p.Status {
			w.Field = core.FieldStatus
		}
		all = append(all, w)
	}
	return all
}

// watchOf returns a watch of all widgets.
func watchOf(manager core.Manager) watch.Watch {
	return watch.Watch{
		Name: types.NamespacedName{Namespace: ownerNamespace, Name: string(manager)}, Manager: manager,
		Resource: schema.GroupVersionResource{Group: widgets().Group, Version: widgets().Version, Resource: "widgets"},
	}
}

// webhook is one of a configuration. Its conditions are not evaluated, so that the filter of the agent decides.
type webhook struct {
	manager  core.Manager
	resource string
	selector labels.Selector
}

// webhooks returns those for widgets in the configuration of an agent.
func (w *world) webhooks(watches []watch.Watch) (all []webhook) {
	endpoint := admission.Endpoint{URL: "https://agent", CABundle: w.pki.older.PEM}
	made, err := admission.WebhookConfiguration("agent", endpoint, watches, admission.ConfigurationOptions{})
	w.must(err)
	for i := range made.Webhooks {
		hook := &made.Webhooks[i]
		manager, _ := admission.ManagerOf(strings.TrimPrefix(*hook.ClientConfig.URL, endpoint.URL))
		selector, err := metav1.LabelSelectorAsSelector(hook.ObjectSelector)
		w.must(err)
		all = append(all, webhook{manager, hook.Rules[0].Resources[0], selector})
	}
	return all
}

// matches reports whether an API server calls the webhook for a write.
func (w *webhook) matches(before, after object) bool {
	resource := strings.TrimSuffix("widgets/"+subresource(before, after), "/")
	return resource == w.resource && slices.ContainsFunc([]object{before, after}, func(o object) bool {
		return o.exists && w.selector.Matches(labels.Set{teamLabel: string(o.team)})
	})
}

// subresource returns that of a write.
func subresource(before, after object) string {
	if before.status != after.status {
		return "status"
	}
	return ""
}
