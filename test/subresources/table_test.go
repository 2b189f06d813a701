package subresources

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
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
		scale      = `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","namespace":"default"},"spec":{"replicas":5}}`
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
		{"Deployment: patch of scale, as kubectl does", deployments, "web", merge("/scale", replicas(4)), "UPDATE", same},
		{"Deployment: update of scale, as autoscalers do", deployments, "web", request(http.MethodPut, "/scale", plainJSON, scale), "UPDATE", same},
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

// TestExpensiveConditions evaluates the most expensive conditions that a Watcher may have, for
// objects of 1 MiB.
func TestExpensiveConditions(t *testing.T) {
	s := newScene(t)
	defer s.end()
	times := func(text, join string) string { return strings.Repeat(text+join, 950/(len(text)+len(join))) + "true" }
	s.register(selected, watches(t, selected, fmt.Sprintf(`
- metadata: {name: expensive}
  spec:
    resourceToWatch: {group: example.com, version: v1, resource: gadgets}
    matchConditions:
    - {name: a, expression: "%s"}
    - {name: b, expression: "%s"}
    - {name: c, expression: "%s"}
    - {name: d, expression: "%s"}`,
		times("object.spec.c == oldObject.spec.c", " && "),
		times("!object.spec.s.matches('(a|b)*(a|c)*x')", " && "),
		"object.spec.few.all(e, "+times("!e.matches('(a|b)*x')", " && ")+")",
		times("object.spec.huge == oldObject.spec.huge", " && "))), admission.ConfigurationOptions{})
	few := strings.TrimSuffix(strings.Repeat(`"`+strings.Repeat("a", 128)+`",`, 64), ",")
	made(fmt.Sprintf(`"spec":{"c":%q,"s":%q,"huge":%q,"few":[%s]}`,
		strings.Repeat("c", 16<<10), strings.Repeat("a", 4<<10), strings.Repeat("a", 1<<20), few))(s, gadgets, "huge")
	s.check(&step{kind: gadgets, object: "huge", write: merge("", `{"spec":{"more":1}}`), events: "UPDATE"})
}

// TestPreciseWatchers proves selectors and conditions of Watchers.
func TestPreciseWatchers(t *testing.T) {
	s := newScene(t)
	for _, stage := range []string{"live", "test"} {
		made(`"metadata":{"labels":{"stage":"`+stage+`"}}`)(s, namespaces, stage)
	}
	s.register(selected, watches(t, selected, `
- metadata: {name: stage}
  spec:
    resourceToWatch: {group: "", version: v1, resource: configmaps}
    namespaceSelector:
      matchExpressions: [{key: stage, operator: In, values: [live]}]
- metadata: {name: labelled}
  spec:
    resourceToWatch: {group: "", version: v1, resource: secrets}
    labelExpressionsToWatch:
    - {key: tier, operator: NotIn, values: [low]}
- metadata: {name: unscaled}
  spec:
    resourceToWatch: {group: example.com, version: v1, resource: widgets}
    matchConditions:
    - {name: no-scale, expression: "request.subResource != 'scale'"}
    - {name: not-me, expression: "request.userInfo.username != 'me'"}`), admission.ConfigurationOptions{})
	const low = `"metadata":{"labels":{"tier":"low"}}`
	for _, step := range []step{
		{"a selected namespace", configMaps.in("live"), "a", made(""), "CREATE", ""},
		{"another namespace", configMaps.in("test"), "a", made(""), "", ""},
		{"no such label", secrets, "none", made(""), "CREATE", ""},
		{"another label", secrets, "low", made(low), "", ""},
		{"leaves the selection", secrets, "none", merge("", "{"+low+"}"), "UPDATE", ""},
		{"without a subresource", widgets, "precise", made(`"spec":{"replicas":1}`), "CREATE", ""},
		{"scale, excluded by a condition", widgets, "precise", merge("/scale", `{"spec":{"replicas":2}}`), "", ""},
	} {
		s.run(step.name, func() { s.check(&step) })
	}
}

// TestDocumentedWatchers reads every example of docs/reference/watcher.md that is no whole Watcher.
func TestDocumentedWatchers(t *testing.T) {
	text := string(test.Read(t, "docs/reference/watcher.md"))
	conditions := 0
	for _, block := range strings.Split(text, "```yaml\n")[1:] {
		example, _, _ := strings.Cut(block, "```")
		if !strings.HasPrefix(example, "spec:") {
			continue
		}
		for _, watch := range watches(t, selected, "- metadata: {name: example}\n  "+strings.ReplaceAll(example, "\n", "\n  ")) {
			conditions += len(watch.Conditions)
		}
	}
	if conditions != 3 {
		t.Errorf("the examples have %d conditions, want 3", conditions)
	}
}

// define creates a definition with one object, and returns the kind.
func define(s *scene, plural, name, label string) kind {
	s.t.Helper()
	d := lab.Definition("example.com", plural, name)
	d.Labels = map[string]string{"of": label}
	lab.NoError(s.t, s.plane.Client.Create(s.t.Context(), d))
	k := kindOf("example.com", plural, name, "default")
	lab.Eventually(s.t, 3*time.Minute, "an object of "+plural, func() bool {
		status, _ := s.api.Do(s.t, http.MethodPost, k.path(""), plainJSON, k.object("one", ""))
		return status == http.StatusCreated
	})
	return k
}

// TestDeletedDefinitions: an API server deletes the objects of a definition without a review, so the
// deletion of the definition is a resync of the managers that watch them, and of no other.
func TestDeletedDefinitions(t *testing.T) {
	s := newScene(t)
	first := define(s, "doomed", "Doomed", "two")
	define(s, "finished", "Finished", "one")
	define(s, "ignored", "Ignored", "none")
	const doomed = `
- metadata: {name: doomed}
  spec:
    resourceToWatch: {group: example.com, version: "*", resource: doomed}
    labelsToWatch: {not: there}`
	const both = doomed + `
- metadata: {name: finished}
  spec: {resourceToWatch: {group: example.com, version: v1, resource: finished/scale}}`
	s.register(selected, watches(t, selected, both), admission.ConfigurationOptions{})
	s.register(everything, watches(t, everything, doomed), admission.ConfigurationOptions{NoMatchConditions: true})
	s.taken()
	for _, tt := range []struct {
		name, definition, query string
		selected, everything    int
	}{
		{"dry run", "doomed.example.com", "?dryRun=All", 0, 0},
		{"definition of no manager", "ignored.example.com", "", 0, 0},
		{"definition of two managers", "doomed.example.com", "", 1, 1},
		{"several definitions in one request", "", "?labelSelector=of%3Done", 1, 0},
	} {
		remove(tt.query)(s, definitions, tt.definition)
		events, _ := s.taken()
		want := slices.Repeat([]string{"resync"}, tt.selected)
		if !slices.Equal(events[selected], want) || len(events[everything]) != tt.everything {
			t.Errorf("%s: %v, want %d and %d resyncs", tt.name, events, tt.selected, tt.everything)
		}
	}
	lab.Eventually(t, 3*time.Minute, "the API server deletes the objects", func() bool {
		status, _ := s.api.Do(t, http.MethodGet, first.path("one"), plainJSON, "")
		return status == http.StatusNotFound
	})
	if events, called := s.taken(); len(events) != 0 || len(called) != 0 {
		t.Errorf("the deletion of the object: %v and calls %v, want none, or the resync is not needed", events, called)
	}
}
