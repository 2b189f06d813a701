package admission_test

import (
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

var widgetKind = schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Widget"}

// TestReviews has the reviews that API servers send, with their decisions and events.
func TestReviews(t *testing.T) {
	t.Parallel()

	one := types.NamespacedName{Namespace: "default", Name: "one"}
	event := func(operation core.Operation, generation int64) *core.WatchEvent {
		e := &core.WatchEvent{
			Watched: one, WatchedGVK: widgetKind, Operation: operation, Field: core.FieldSpec,
			Generation: generation, Time: noon,
		}
		if generation > 0 { // Objects without it have neither uid nor resourceVersion here.
			e.UID = "9d6ba5a4"
		}
		if generation > 0 && operation != core.OperationCreate {
			e.Base = 42
		}

		return e
	}

	tests := []struct {
		name     string
		review   []byte
		decision admission.Decision
		event    *core.WatchEvent
	}{
		{
			"CREATE", change(t, "", widget("", `"spec":{"a":1}`)), admission.Accepted, event(core.OperationCreate, 3),
		},
		{
			"CREATE with generateName: the name is in the object only", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Create
				q.Name = ""
				q.Object = raw(widget(`"generateName":"on"`, `"spec":{"a":1}`))
			}), admission.Accepted, event(core.OperationCreate, 3),
		},
		{
			"CREATE with generateName, before the name is generated", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Create
				q.Name = ""
				q.Object = raw(`{"metadata":{"generateName":"on-","namespace":"default"},"spec":{}}`)
			}), "no_name", nil,
		},
		{
			"UPDATE of the spec",
			update(t, widget("", `"spec":{"a":1}`), widget("", `"spec":{"a":2}`)),
			admission.Accepted, event(core.OperationUpdate, 3),
		},
		{
			"UPDATE of an annotation only",
			update(t, widget("", `"spec":{"a":1}`), widget(`"annotations":{"x":"y"}`, `"spec":{"a":1}`)),
			admission.Unchanged, nil,
		},
		{
			"CREATE of a Namespace, whose request names it twice", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Create
				q.Kind = metav1.GroupVersionKind{Version: "v1", Kind: "Namespace"}
				q.Name = "foo"
				q.Namespace = "foo"
				q.Object = raw(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"foo"}}`)
			}), admission.Accepted, &core.WatchEvent{
				Watched:    types.NamespacedName{Name: "foo"},
				WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "Namespace"},
				Operation:  core.OperationCreate, Field: core.FieldSpec, Time: noon,
			},
		},
		{
			"UPDATE of the status subresource", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Update
				q.SubResource = "status"
				q.OldObject = raw(widget("", `"status":{"ready":false}`))
				q.Object = raw(widget("", `"status":{"ready":true}`))
			}), admission.Accepted, &core.WatchEvent{
				Watched: one, WatchedGVK: widgetKind, Operation: core.OperationUpdate, Field: core.FieldStatus,
				Generation: 3, Time: noon, UID: "9d6ba5a4", Base: 42,
			},
		},
		{
			"UPDATE of scale", reviewOf(t, scaled), admission.Accepted, &core.WatchEvent{
				Watched: one, WatchedGVK: schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"},
				Operation: core.OperationUpdate, Field: core.FieldSpec, Time: noon,
			},
		},
		{
			"CONNECT", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Connect
				q.Kind = metav1.GroupVersionKind{Version: "v1", Kind: "PodExecOptions"}
				q.SubResource = "exec"
				q.Object = raw(`{"kind":"PodExecOptions","apiVersion":"v1","stdin":true,"command":["sh"]}`)
			}), admission.Accepted, &core.WatchEvent{
				Watched: one, WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "PodExecOptions"},
				Operation: core.OperationConnect, Field: core.FieldSpec, Time: noon,
			},
		},
		{
			"DELETE", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Delete
				q.OldObject = raw(widget("", `"spec":{}`))
				q.Options = raw(`{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1","propagationPolicy":"Background"}`)
			}), admission.Accepted, event(core.OperationDelete, 3),
		},
		{
			"DELETE of a collection: the name is in the old object only", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Delete
				q.Name = ""
				q.OldObject = raw(widget("", `"spec":{}`))
			}), admission.Accepted, event(core.OperationDelete, 3),
		},
		{
			"DELETE without the old object", reviewOf(t, func(q *admissionv1.AdmissionRequest) { q.Operation = admissionv1.Delete }),
			admission.Accepted, event(core.OperationDelete, 0),
		},
		{
			"DELETE without any name: each object may be gone",
			reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Delete
				q.Name = ""
			}),
			admission.Accepted, &core.WatchEvent{Resync: true, Time: noon},
		},
		{
			"DELETE of a collection that is an object without a name", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Delete
				q.Name = ""
				q.OldObject = raw(`{"kind":"WidgetList","metadata":{"resourceVersion":"7"},"items":[]}`)
			}), admission.Accepted, &core.WatchEvent{Resync: true, Time: noon},
		},
		{
			"UPDATE without any name and object", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Update
				q.Name = ""
			}),
			admission.Accepted, &core.WatchEvent{Resync: true, Time: noon},
		},
		{
			"UPDATE of objects without a name", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Update
				q.Name = ""
				q.OldObject = raw(`{"metadata":{},"spec":{"a":1}}`)
				q.Object = raw(`{"metadata":{},"spec":{"a":2}}`)
			}), admission.Accepted, &core.WatchEvent{Resync: true, Time: noon},
		},
		{
			"UPDATE of objects without a name, unchanged", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Update
				q.Name = ""
				q.OldObject = raw(`{"metadata":{},"spec":{"a":1}}`)
				q.Object = raw(`{"metadata":{},"spec":{"a":1}}`)
			}), "unchanged", nil,
		},
		{
			"dry run of a DELETE without any name", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Delete
				q.Name = ""
				q.DryRun = new(true)
			}), admission.DryRun, nil,
		},
		{
			"dry run of a CREATE", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Create
				q.DryRun = new(true)
				q.Object = raw(widget("", `"spec":{"a":1}`))
			}), admission.DryRun, nil,
		},
		{
			"a cluster-scoped object", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Create
				q.Namespace = ""
				q.Object = raw(`{"metadata":{"name":"one"}}`)
			}), admission.Accepted, &core.WatchEvent{
				Watched: types.NamespacedName{Name: "one"}, WatchedGVK: widgetKind,
				Operation: core.OperationCreate, Field: core.FieldSpec, Time: noon,
			},
		},
		{
			"an object of which the request says no kind", reviewOf(t, func(q *admissionv1.AdmissionRequest) {
				q.Operation = admissionv1.Create
				q.Kind = metav1.GroupVersionKind{}
				q.Object = raw(widget("", `"spec":{"a":1}`))
			}), admission.Accepted, event(core.OperationCreate, 3),
		},
		{
			"an object that the API server converted",
			change(t, "", `{"apiVersion":"example.org/v7","kind":"Widget","metadata":{"name":"one","namespace":"default"}}`),
			admission.Accepted, event(core.OperationCreate, 0),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			got := newInbox()
			h := newHandler(t, got, admission.Options{})
			if decision := decisionOf(t, post(h, "/validate/kyma", tt.review), testUID); decision != tt.decision {
				t.Errorf("decision %q, want %q", decision, tt.decision)
			}

			var want []core.WatchEvent
			if tt.event != nil {
				want = []core.WatchEvent{*tt.event}
			}

			compare(t, "events", want, got.events)
		})
	}
}

func TestOutcomesAreDecisions(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[core.Outcome]admission.Decision{
		core.Accepted:  admission.Accepted,
		core.Coalesced: "coalesced",
		core.Dropped:   "dropped",
		"who knows":    "failed",
	} {
		got := &inbox{outcome: outcome}
		have := decisionOf(t, post(newHandler(t, got, admission.Options{}), "/validate/kyma", specChange(t)), testUID)
		if have != want {
			t.Errorf("outcome %q answered as %q, want %q", outcome, have, want)
		}
	}
}

func TestAFilterDecides(t *testing.T) {
	t.Parallel()

	got := newInbox()
	h := newHandler(t, got, admission.Options{Filter: func(c *core.Change) bool {
		value, _ := c.New.Label("watch")
		return value == "me"
	}})

	for labels, want := range map[string]admission.Decision{`"watch":"me"`: admission.Accepted, "": "irrelevant"} {
		review := change(t, "", widget(`"labels":{`+labels+`}`))
		if have := decisionOf(t, post(h, "/validate/kyma", review), testUID); have != want {
			t.Errorf("%s: %q, want %q", labels, have, want)
		}
	}

	compare(t, "managers", []core.Manager{"kyma"}, got.managers)
}

// scaled makes a review of the scale subresource.
func scaled(q *admissionv1.AdmissionRequest) {
	scale := func(replicas int) string {
		return fmt.Sprintf(`{"kind":"Scale","metadata":{"name":"one"},"spec":{"replicas":%d}}`, replicas)
	}
	q.Operation = admissionv1.Update
	q.SubResource = "scale"
	q.Kind = metav1.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
	q.OldObject = raw(scale(1))
	q.Object = raw(scale(2))
}

// The path of a subresource has the kind of the resource, because the review has another one.
func TestKindInThePath(t *testing.T) {
	t.Parallel()

	apps := metav1.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}
	scale := reviewOf(t, func(q *admissionv1.AdmissionRequest) { scaled(q); q.Resource = apps })
	status := reviewOf(t, func(q *admissionv1.AdmissionRequest) {
		q.Operation = admissionv1.Update
		q.Resource = apps
		q.SubResource = "status"
		q.OldObject = raw(widget("", `"status":1`))
		q.Object = raw(widget("", `"status":2`))
	})

	stateful := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "StatefulSet"}
	foreign := schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
	for name, tt := range map[string]struct {
		segment string
		review  []byte
		want    schema.GroupVersionKind
	}{
		"of a scale":        {"/stateful.set", scale, stateful},
		"none":              {"", scale, foreign},
		"of the own object": {"/stateful.set", status, widgetKind},
	} {
		got := newInbox()
		post(newHandler(t, got, admission.Options{}), "/validate/kyma"+tt.segment, tt.review)
		if len(got.events) != 1 || got.events[0].WatchedGVK != tt.want || got.events[0].Watched.Name != "one" {
			t.Errorf("%s: events %+v, want one of %s", name, got.events, tt.want)
		}
	}
}

// TestDeletedDefinition: the deletion of the definition of a watched resource is a resync, unless
// the definitions themselves are watched.
func TestDeletedDefinition(t *testing.T) {
	t.Parallel()

	const path = "/validate/kyma/custom.resource.definition"
	for _, tt := range []struct {
		path      string
		operation admissionv1.Operation
		dryRun    bool
		decision  admission.Decision
		resync    bool
	}{
		{path, admissionv1.Delete, false, admission.Accepted, true},
		{path, admissionv1.Delete, true, admission.DryRun, false},
		{path, admissionv1.Create, false, admission.Accepted, false},
		{"/validate/kyma", admissionv1.Delete, false, admission.Accepted, false},
	} {
		got := newInbox()
		review := reviewOf(t, func(q *admissionv1.AdmissionRequest) {
			q.Operation = tt.operation
			q.DryRun = &tt.dryRun
		})
		have := decisionOf(t, post(newHandler(t, got, admission.Options{}), tt.path, review), testUID)
		if have != tt.decision || got.resyncs() != tt.resync {
			t.Errorf("%+v: %q and events %v", tt, have, got.events)
		}
	}
}

// The names of one operator are no names to another one.
func TestOwnerAnnotation(t *testing.T) {
	t.Parallel()

	with := func(name, owner string) string {
		object := widget(fmt.Sprintf(`"annotations":{%q:%q}`, name, owner))
		return strings.TrimSuffix(object, "}") + `,"spec":{"a":1}}`
	}

	got := newInbox()
	h := newHandler(t, got, admission.Options{OwnerAnnotation: "fleet.example.com/owned-by", RequireOwner: true})

	for _, tt := range []struct {
		before, after string
		want          admission.Decision
	}{
		{"", with("fleet.example.com/owned-by", "fleet/a"), admission.Accepted},
		{"", with(core.OwnerAnnotation, "fleet/a"), "no_owner"},
		{with("fleet.example.com/owned-by", "fleet/a"), with("fleet.example.com/owned-by", "fleet/b"), admission.Accepted},
		{with(core.OwnerAnnotation, "fleet/a"), with(core.OwnerAnnotation, "fleet/b"), admission.Unchanged},
	} {
		if have := decisionOf(t, post(h, "/validate/kyma", change(t, tt.before, tt.after)), testUID); have != tt.want {
			t.Errorf("from %s to %s: %q, want %q", tt.before, tt.after, have, tt.want)
		}
	}
}

// Package core has the kinds of owners.
func TestOwnerOfTheEvent(t *testing.T) {
	t.Parallel()

	annotated := func(value string) string {
		return widget(fmt.Sprintf(`"annotations":{"operator.kyma-project.io/owned-by":%s}`, value))
	}
	kyma := types.NamespacedName{Namespace: "kcp", Name: "kyma"}
	tests := []struct {
		name          string
		before, after string // JSON objects, absent when empty
		require       bool
		decision      admission.Decision
		owner         types.NamespacedName
		problem       string
	}{
		{"of the new object", annotated(`"kcp/old"`), annotated(`"kcp/kyma"`), true, admission.Accepted, kyma, ""},
		{"missing, required", "", widget(""), true, "no_owner", types.NamespacedName{}, "missing"},
		{"missing, optional", "", widget(""), false, admission.Accepted, types.NamespacedName{}, ""},
		{"malformed, required", "", annotated(`"kyma"`), true, "no_owner", types.NamespacedName{}, "malformed"},
		{"malformed, optional", "", annotated(`"kyma"`), false, admission.Accepted, types.NamespacedName{}, "malformed"},
		{"of another operator", "", widget(`"annotations":{"fleet.example.com/owned-by":"kcp/kyma"}`), true, "no_owner", types.NamespacedName{}, "missing"},
		{"of an irrelevant change", widget(""), widget(""), true, admission.Unchanged, types.NamespacedName{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			var problems []string
			got := newInbox()
			h := newHandler(t, got, admission.Options{
				RequireOwner: tt.require,
				Hooks: admission.Hooks{OwnerProblem: func(p hook.OwnerProblem) {
					problems = append(problems, string(p.Manager)+" "+string(p.Problem))
				}},
			})

			have := decisionOf(t, post(h, "/validate/kyma", change(t, tt.before, tt.after)), testUID)
			if have != tt.decision {
				t.Errorf("decision %q, want %q", have, tt.decision)
			}
			if tt.decision == admission.Accepted && (len(got.events) != 1 || got.events[0].Owner != tt.owner) {
				t.Errorf("events %v, want one with owner %v", got.events, tt.owner)
			}
			if tt.decision != admission.Accepted && len(got.events) > 0 {
				t.Errorf("events %v, want none", got.events)
			}

			var want []string
			if tt.problem != "" {
				want = []string{"kyma " + tt.problem}
			}

			compare(t, "owner problems", want, problems)
		})
	}
}
