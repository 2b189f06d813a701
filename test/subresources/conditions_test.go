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
