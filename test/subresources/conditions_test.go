package subresources

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test"
)

// The managers of the conditions.
const (
	guarded core.Manager = "guarded" // has the expression of a Watcher
	bare    core.Manager = "bare"    // has the same expression without a guard
)

// larger fails for the absent size, for one of another type, and for an object without spec.
const larger = "object.spec.size > 3"

// TestConditionThatFails proves that a condition of a Watcher loses nothing where it fails, and
// that the same condition loses writes without a guard.
func TestConditionThatFails(t *testing.T) {
	s := newScene(t)
	s.register(guarded, watches(t, guarded, `
metadata: {name: large}
spec:
  resourceToWatch: {group: example.com, version: v1, resource: gadgets}
  matchConditions: [{name: larger, expression: `+larger+`}]`), admission.ConfigurationOptions{})
	failures := s.conditionErrors()
	s.register(bare, []watch.Watch{{
		Name: types.NamespacedName{Namespace: "kcp-system", Name: "large"}, Manager: bare,
		Resource:   admissionResource("example.com", "gadgets"),
		Conditions: []watch.Condition{{Name: "larger", Expression: larger}},
	}}, admission.ConfigurationOptions{})
	s.taken()
	for i, tt := range []struct {
		spec          string
		guarded, bare int
	}{
		{`"spec":{"size":4}`, 1, 1},
		{`"spec":{"size":4.5}`, 1, 1},
		{`"spec":{"size":3}`, 0, 0},
		{`"spec":{"size":2.5}`, 0, 0},
		{`"spec":{"size":"large"}`, 1, 0},
		{`"spec":{"size":null}`, 1, 0},
		{`"spec":{}`, 1, 0},
		{`"spec":null`, 1, 0},
		{`"data":1`, 1, 0},
	} {
		create(namespaced("example.com", "gadgets", ""),
			fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"size-%d"},%s}`, i, tt.spec))(s)
		events, _ := s.taken()
		if len(events[guarded]) != tt.guarded || len(events[bare]) != tt.bare {
			t.Errorf("%s: %d events with a guard and %d without, want %d and %d",
				tt.spec, len(events[guarded]), len(events[bare]), tt.guarded, tt.bare)
		}
	}
	// A condition also decides about scale.
	patch(namespaced("example.com", "gadgets", "size-0")+"/scale", `{"spec":{"replicas":1}}`)(s)
	if events, _ := s.taken(); len(events[guarded]) != 1 || len(events[bare]) != 0 {
		t.Errorf("scale: events %v, want one with a guard", events)
	}
	lost := s.conditionErrors() - failures
	if want := 6.0; lost != want { // Five creations and one scale, of bare.
		t.Errorf("%v evaluations failed, want %v", lost, want)
	}
	t.Logf("without a guard, %v of 10 writes were lost in silence; with a guard, none", lost)
}

// TestExpensiveConditions evaluates the most expensive conditions that a Watcher may have, for
// objects of 1 MiB.
func TestExpensiveConditions(t *testing.T) {
	s := newScene(t)
	before := s.conditionErrors()
	times := func(text, join string) string { return strings.Repeat(text+join, 950/(len(text)+len(join))) + "true" }
	s.register(guarded, watches(t, guarded, fmt.Sprintf(`
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
	if diff := cmp.Diff([]string{"UPDATE Gadget.v1.example.com default/huge"}, events[guarded]); diff != "" {
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

// TestUnknownSubresourcesAreTolerated: an API server accepts a rule for a subresource that does not
// exist, so scale can be in every configuration.
func TestUnknownSubresourcesAreTolerated(t *testing.T) {
	s := newScene(t)
	s.register(selected, watches(t, selected, `
metadata: {name: plants}
spec: {resourceToWatch: {group: example.com, version: v1, resource: plants}}
---
metadata: {name: missing}
spec: {resourceToWatch: {group: missing.example.com, version: v1, resource: missing}}`), admission.ConfigurationOptions{})
	var stored admissionregistrationv1.ValidatingWebhookConfiguration
	if err := s.plane.Client.Get(t.Context(), types.NamespacedName{Name: string(selected)}, &stored); err != nil {
		t.Fatal(err)
	}
	var resources []string
	for _, webhook := range stored.Webhooks {
		resources = append(resources, webhook.Rules[0].Resources...)
	}
	want := []string{"customresourcedefinitions", "missing", "missing/scale", "plants", "plants/scale", "leases", "leases/scale"}
	if diff := cmp.Diff(want, resources, cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("resources of the webhooks (-want +got):\n%s", diff)
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
