package subresources

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/test"
)

// TestExpensiveConditions evaluates the most expensive conditions that a Watcher may have, for
// objects of 1 MiB.
func TestExpensiveConditions(t *testing.T) {
	s := newScene(t)
	before := s.conditionErrors()
	times := func(text, join string) string { return strings.Repeat(text+join, 950/(len(text)+len(join))) + "true" }
	s.register(selected, watches(t, selected, fmt.Sprintf(`
metadata: {name: expensive}
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
	create(namespaced("example.com", "gadgets", ""), fmt.Sprintf(
		`{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"huge"},"spec":{"c":%q,"s":%q,"huge":%q,"few":[%s]}}`,
		strings.Repeat("c", 16<<10), strings.Repeat("a", 4<<10), strings.Repeat("a", 1<<20), few))(s)
	s.taken()
	patch(namespaced("example.com", "gadgets", "huge"), `{"spec":{"more":1}}`)(s)
	events, _ := s.taken()
	if diff := cmp.Diff([]string{"UPDATE Gadget.v1.example.com default/huge"}, events[selected]); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if failed := s.conditionErrors() - before; failed != 0 {
		t.Errorf("%v evaluations failed, want none", failed)
	}
}

// TestPreciseWatchers proves selectors and conditions of Watchers.
func TestPreciseWatchers(t *testing.T) {
	s := newScene(t)
	s.must("POST", "/api/v1/namespaces", plainJSON, `{"metadata":{"name":"live","labels":{"stage":"live"}}}`)
	s.must("POST", "/api/v1/namespaces", plainJSON, `{"metadata":{"name":"test","labels":{"stage":"test"}}}`)
	s.register(selected, watches(t, selected, `
metadata: {name: stage}
spec:
  resourceToWatch: {group: "", version: v1, resource: configmaps}
  namespaceSelector:
    matchExpressions: [{key: stage, operator: In, values: [live]}]
---
metadata: {name: labelled}
spec:
  resourceToWatch: {group: "", version: v1, resource: secrets}
  labelExpressionsToWatch:
  - {key: tier, operator: NotIn, values: [low]}
---
metadata: {name: unscaled}
spec:
  resourceToWatch: {group: example.com, version: v1, resource: widgets}
  matchConditions:
  - {name: no-scale, expression: "request.subResource != 'scale'"}
  - {name: not-me, expression: "request.userInfo.username != 'me'"}`), admission.ConfigurationOptions{})
	s.taken()
	widget := namespaced("example.com", "widgets", "precise")
	for _, step := range []step{
		{"a selected namespace", create("/api/v1/namespaces/live/configmaps", `{"metadata":{"name":"a"}}`), "CREATE ConfigMap.v1. live/a", ""},
		{"another namespace", create("/api/v1/namespaces/test/configmaps", `{"metadata":{"name":"a"}}`), "", ""},
		{"no such label", create(ofCore("secrets", ""), `{"metadata":{"name":"none"}}`), "CREATE Secret.v1. default/none", ""},
		{"another label", create(ofCore("secrets", ""), `{"metadata":{"name":"low","labels":{"tier":"low"}}}`), "", ""},
		{
			"leaves the selection", patch(ofCore("secrets", "none"), `{"metadata":{"labels":{"tier":"low"}}}`),
			"UPDATE Secret.v1. default/none", "",
		},
		{
			"without a subresource", create(namespaced("example.com", "widgets", ""),
				`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"precise"},"spec":{"replicas":1}}`),
			"CREATE Widget.v1.example.com default/precise", "",
		},
		{"scale, excluded by a condition", patch(widget+"/scale", `{"spec":{"replicas":2}}`), "", ""},
	} {
		step.write(s)
		events, _ := s.taken()
		if got := strings.Join(events[selected], ", "); got != step.events {
			t.Errorf("%s: events %q, want %q", step.name, got, step.events)
		}
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
		for _, watch := range watches(t, selected, "metadata: {name: example}\n"+example) {
			conditions += len(watch.Conditions)
		}
	}
	if conditions != 3 {
		t.Errorf("the examples have %d conditions, want 3", conditions)
	}
}
