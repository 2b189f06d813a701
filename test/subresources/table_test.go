package subresources

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
)

// watched are the Watchers of the table.
//
//nolint:misspell // Names of Kubernetes.
const watched = `
- {metadata: {name: deployments}, spec: {resourceToWatch: {group: apps, version: v1, resource: deployments}, labelsToWatch: {watched: "true"}}}
- {metadata: {name: widgets}, spec: {resourceToWatch: {group: example.com, version: "*", resource: widgets, kind: Widget}}}
- {metadata: {name: gadgets}, spec: {resourceToWatch: {group: example.com, version: v1, resource: gadgets}}}
- {metadata: {name: plants}, spec: {resourceToWatch: {group: example.com, version: v1, resource: plants}}}
- {metadata: {name: configmaps}, spec: {resourceToWatch: {group: "", version: v1, resource: configmaps}}}
- {metadata: {name: secrets}, spec: {resourceToWatch: {group: "", version: v1, resource: secrets}}}
- {metadata: {name: namespaces}, spec: {resourceToWatch: {group: "", version: v1, resource: namespaces}}}
- {metadata: {name: pods}, spec: {resourceToWatch: {group: "", version: v1, resource: pods}}}
- {metadata: {name: finalize}, spec: {resourceToWatch: {group: "", version: v1, resource: namespaces/finalize}}}
- {metadata: {name: eviction}, spec: {resourceToWatch: {group: "", version: v1, resource: pods/eviction}}}
- {metadata: {name: exec}, spec: {resourceToWatch: {group: "", version: v1, resource: pods/exec}}}
- {metadata: {name: binding}, spec: {resourceToWatch: {group: "", version: v1, resource: pods/binding}}}
- {metadata: {name: token}, spec: {resourceToWatch: {group: "", version: v1, resource: serviceaccounts/token}}}`

// step is a write to an object, and the events of it: words as "CREATE, UPDATE" for the object, or texts of others.
type step struct {
	name   string
	kind   kind
	object string
	write  write
	events string // of the webhook
	seen   string // by an informer: it sees what was committed, with the labels, and no subresource by itself
}

const same = "as the webhook"

// texts returns the texts of events, with commas.
func (s *step) texts(events string) string {
	texts := strings.Split(events, ", ")
	for i, text := range texts {
		if text != "" && !strings.Contains(text, " ") {
			texts[i] = s.kind.event(text, s.object)
		}
	}
	return strings.Join(texts, ", ")
}

// check makes the write of a step, and compares its events. With match conditions each call is an event.
func (s *scene) check(step *step) {
	s.t.Helper()
	s.updateCaches()
	s.taken()
	step.write(s, step.kind, step.object)
	events, called := s.taken()
	for _, manager := range s.managers {
		if got, want := strings.Join(events[manager], ", "), step.texts(step.events); got != want {
			s.t.Errorf("events for %s: %q, want %q", manager, got, want)
		}
	}
	if want := len(events[selected]); called[selected] != want {
		s.t.Errorf("%d calls with match conditions, want %d", called[selected], want)
	}
	s.t.Logf("%d calls, %d without match conditions: %q", called[selected], called[everything], events[selected])
}

func TestTable(t *testing.T) {
	s := newScene(t)
	defer s.end()
	s.register(everything, watches(t, everything, watched), admission.ConfigurationOptions{NoMatchConditions: true})
	s.register(selected, watches(t, selected, watched), admission.ConfigurationOptions{})
	s.registerDenial()
	s.inform(watches(t, informed, watched))
	for _, step := range steps() {
		s.run(step.name, func() {
			s.check(&step)
			if step.seen == same {
				step.seen = step.events
			}
			s.sees(step.texts(step.seen))
		})
	}
}

//nolint:misspell // Names of Kubernetes.
func steps() []step {
	const (
		podSpec    = `{"containers":[{"name":"a","image":"a"}]}`
		spec       = `,"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":` + podSpec + `}}`
		labelled   = `"metadata":{"labels":{"watched":"true"}}`
		unlabelled = `"metadata":{"labels":{}}`
		nine       = `"spec":{"replicas":9}`
		eviction   = `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p"}}`
		binding    = `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p"},"target":{"kind":"Node","name":"node"}}`
		finalized  = `{"metadata":{"name":"n"},"spec":{"finalizers":[]}}`
		created    = "CREATE Gadget.v1.example.com default/g, "
	)
	replicas := func(n int) string { return fmt.Sprintf(`{"spec":{"replicas":%d}}`, n) }
	denied := refused(http.StatusInternalServerError, merge("", `{"metadata":{"labels":{"denied":"true"}}}`))
	exec := refused(http.StatusBadRequest, post("/exec?command=ls", ""))
	return []step{
		{"Deployment: create", deployments, "web", made(labelled + spec), "CREATE", same},
		{"Deployment: kubectl scale", deployments, "web", kubectl("scale", "deployment", "web", "--replicas=3"), "UPDATE", same},
		{"Deployment: patch of scale", deployments, "web", merge("/scale", replicas(4)), "UPDATE", same},
		{"Deployment: update of scale, as autoscalers do", deployments, "web", replace("/scale", `"replicas":4`, `"replicas":5`), "UPDATE", same},
		{"Deployment: patch of scale, the same number", deployments, "web", merge("/scale", replicas(5)), "", same},
		{"Deployment: dry run of scale", deployments, "web", merge("/scale?dryRun=All", replicas(6)), "", same},
		{"Deployment: apply, a conflict", deployments, "web", refused(http.StatusConflict, apply("?fieldManager=other", nine)), "", same},
		{"Deployment: apply, forced", deployments, "web", apply("?fieldManager=other&force=true", nine), "UPDATE", same},
		{"Deployment: rejected by another webhook, a superfluous reconcile", deployments, "web", denied, "UPDATE", ""},
		{"Deployment: delete", deployments, "web", remove(""), "DELETE", same},
		{"Deployment without the label: create", deployments, "other", made(unlabelled + spec), "", same},
		{"Deployment without the label: a Scale shows no labels", deployments, "other", merge("/scale", replicas(2)), "UPDATE", ""},
		{"Deployment: the label added", deployments, "other", merge("", "{"+labelled+"}"), "UPDATE", "CREATE"},
		{"Deployment: the label removed", deployments, "other", merge("", `{"metadata":{"labels":null}}`), "UPDATE", "DELETE"},
		{"custom resource: create", widgets, "w", made(`"metadata":{"finalizers":["example.com/f"]},"spec":{"replicas":1}`), "CREATE", same},
		{"custom resource: scale", widgets, "w", merge("/scale", replicas(2)), "UPDATE", same},
		{"custom resource: annotation", widgets, "w", merge("", note), "", same},
		{"custom resource: owner", widgets, "w", merge("", owner), "UPDATE", same},
		{"custom resource: status", widgets, "w", merge("/status", `{"status":{"a":1}}`), "", same},
		{"custom resource: delete, held by a finalizer", widgets, "w", remove(""), "DELETE", "UPDATE"},
		{"custom resource: the last finalizer", widgets, "w", merge("", `{"metadata":{"finalizers":null}}`), "UPDATE", "DELETE"},
		{
			"custom resource, kind not in the Watcher: scale", gadgets, "g", all(made(`"spec":{"replicas":1}`), merge("/scale", replicas(2))),
			created + "UPDATE Scale.v1.autoscaling default/g", created + "UPDATE",
		},
		{"cluster-scoped custom resource: create", plants, "p", made(`"spec":{"a":1}`), "CREATE", same},
		{"cluster-scoped custom resource: spec", plants, "p", merge("", `{"spec":{"a":2}}`), "UPDATE", same},
		{"cluster-scoped custom resource: status", plants, "p", merge("/status", `{"status":{"a":2}}`), "", same},
		{"cluster-scoped custom resource: delete", plants, "p", remove(""), "DELETE", same},
		{"ConfigMap: create", configMaps, "c", made(`"data":{"a":"b"}`), "CREATE", same},
		{"ConfigMap: annotation", configMaps, "c", merge("", note), "UPDATE", same},
		{"ConfigMaps: delete a collection", configMaps, "d", all(made(""), removeAll), "CREATE, DELETE ConfigMap.v1. default/c, DELETE", same},
		{"Secret: create and change", secrets, "s", all(made(""), merge("", `{"stringData":{"a":"b"}}`)), "CREATE, UPDATE", same},
		{"Namespace: create and label", namespaces, "n", all(made(""), merge("", label)), "CREATE, UPDATE", same},
		{"Namespace: delete", namespaces, "n", remove(""), "DELETE", "UPDATE"},
		{"namespaces/finalize", namespaces, "n", request(http.MethodPut, "/finalize", plainJSON, finalized), "UPDATE", "DELETE"},
		{"Pod: create", pods, "p", made(`"spec":` + podSpec), "CREATE", same},
		{"pods/exec", pods, "p", exec, "CONNECT", ""},
		{"pods/binding", pods, "p", post("/binding", binding), "CREATE", "UPDATE"},
		{"pods/eviction, dry run", pods, "p", post("/eviction?dryRun=All", eviction), "", same},
		{"pods/eviction", pods, "p", post("/eviction", eviction), "CREATE", "UPDATE"},
		{"serviceaccounts/token", accounts, "sa", all(made(""), post("/token", `{"spec":{}}`)), "CREATE", ""},
	}
}
