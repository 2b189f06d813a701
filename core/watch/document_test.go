package watch_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/watchtest"
)

// roundTrip writes watches as text, and reads the text.
func roundTrip(t *testing.T, watches ...watch.Watch) []watch.Watch {
	t.Helper()

	text, err := json.Marshal(watch.DocumentOf(watches))
	if err != nil {
		t.Fatal(err)
	}
	return read(t, string(text))
}

func read(t *testing.T, text string) []watch.Watch {
	t.Helper()

	var document watch.Document
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	watches, err := document.Watches()
	if err != nil {
		t.Fatal(err)
	}
	return watches
}

// A field that the text form loses would widen or narrow a webhook.
func TestTextKeepsEachField(t *testing.T) {
	whole, changed := watchtest.Watches()
	if err := whole.Validate(); err != nil {
		t.Errorf("the watch with all fields: %v", err)
	}

	for path, w := range changed {
		if err := w.Validate(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if cmp.Equal(whole, w) {
			t.Errorf("%s is not changed", path)
		}

		if diff := cmp.Diff([]watch.Watch{w}, roundTrip(t, w)); diff != "" {
			t.Errorf("%s: text drops or changes a field (-want +got):\n%s", path, diff)
		}
	}
}

func TestTextIsSortedByName(t *testing.T) {
	named := func(namespace, name string) watch.Watch {
		return watch.Watch{Name: types.NamespacedName{Namespace: namespace, Name: name}}
	}
	have := roundTrip(t, named("b", "a"), named("a", "b"), named("a", "a"))
	if diff := cmp.Diff([]watch.Watch{named("a", "a"), named("a", "b"), named("b", "a")}, have); diff != "" {
		t.Errorf("watches (-want +got):\n%s", diff)
	}

	if have := roundTrip(t); len(have) != 0 {
		t.Errorf("%v, want none", have)
	}
}

// deployed is a text of v0.1: an installer writes null for what is not set.
const deployed = `{"items":[
	{"kind":"Watcher","metadata":{"name":"kyma","namespace":"kcp-system"},"spec":{
		"field":"spec","labelExpressionsToWatch":[{"key":"stage","operator":"In","values":["live"]}],
		"labelsToWatch":{"a":"b"},"manager":"lifecycle-manager","namespaceSelector":{"matchLabels":{"team":"blue"}},
		"resourceToWatch":{"group":"operator.kyma-project.io","resource":"kymas","version":"*"}}},
	{"kind":"Watcher","metadata":{"name":"status","namespace":"kcp-system"},"spec":{
		"field":"status","labelExpressionsToWatch":null,"labelsToWatch":null,"manager":"other","namespaceSelector":null,
		"resourceToWatch":{"group":"","resource":"configmaps","version":"v1"}}}
],"kind":"WatcherList"}`

func TestDeployedTextIsRead(t *testing.T) {
	want := []watch.Watch{
		{
			Name: types.NamespacedName{Namespace: "kcp-system", Name: "kyma"}, Manager: "lifecycle-manager", Field: "spec",
			Resource: schema.GroupVersionResource{Group: "operator.kyma-project.io", Version: "*", Resource: "kymas"},
			Selector: watch.Selector{
				Labels:       map[string]string{"a": "b"},
				Requirements: []watch.Requirement{{Key: "stage", Operator: "In", Values: []string{"live"}}},
			},
			NamespaceSelector: watch.Selector{Labels: map[string]string{"team": "blue"}},
		},
		{
			Name: types.NamespacedName{Namespace: "kcp-system", Name: "status"}, Manager: "other", Field: "status",
			Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		},
	}
	if diff := cmp.Diff(want, read(t, deployed)); diff != "" {
		t.Errorf("watches (-want +got):\n%s", diff)
	}
}

// Namespace and manager come from the defaults of a deployed Watcher.
func TestDefaultsOfAWatcher(t *testing.T) {
	const text = `{"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "List", "items": [{"kind": "Watcher",
		"metadata": {"name": "w", "labels": {"operator.kyma-project.io/managed-by": "m"}}, "spec": {"gateway": {}}}]}`
	want := []watch.Watch{{Name: types.NamespacedName{Namespace: "default", Name: "w"}, Manager: "m"}}
	if diff := cmp.Diff(want, read(t, text)); diff != "" {
		t.Errorf("watches (-want +got):\n%s", diff)
	}
}

// An operator may have another kind for its watches.
func TestAnotherKind(t *testing.T) {
	const text = `{"apiVersion": "fleet.example.com/v1beta2", "kind": "FleetWatchList", "items": [
		{"kind": "FleetWatch", "metadata": {"name": "w"}, "spec": {"manager": "m", "resourceToWatch": {"resource": "pods"}}}]}`
	want := []watch.Watch{{
		Name: types.NamespacedName{Namespace: "default", Name: "w"}, Manager: "m",
		Resource: schema.GroupVersionResource{Resource: "pods"},
	}}
	if diff := cmp.Diff(want, read(t, text)); diff != "" {
		t.Errorf("watches (-want +got):\n%s", diff)
	}
}

func TestOtherKindsAreRefused(t *testing.T) {
	for _, document := range []watch.Document{
		{}, {Kind: "Pod"}, {Kind: "List", Items: []watch.Document{{Kind: "Watcher"}, {Kind: "Pod"}}},
	} {
		if watches, err := document.Watches(); err == nil {
			t.Errorf("%+v: got %v, want an error", document, watches)
		}
	}
}

func valid() watch.Watch {
	return watch.Watch{
		Name:     types.NamespacedName{Namespace: "kcp-system", Name: "kyma"},
		Manager:  "lifecycle-manager",
		Resource: schema.GroupVersionResource{Group: "operator.kyma-project.io", Version: "*", Resource: "kymas"},
		Selector: watch.Selector{Labels: map[string]string{"operator.kyma-project.io/watched-by": "kyma"}},
	}
}

func requirement(key, operator string, values ...string) func(*watch.Watch) {
	return func(w *watch.Watch) {
		w.Selector.Requirements = []watch.Requirement{{Key: key, Operator: operator, Values: values}}
	}
}

func condition(name, expression string) func(*watch.Watch) {
	return func(w *watch.Watch) { w.Conditions = []watch.Condition{{Name: name, Expression: expression}} }
}

// The error names the faulty field and the expected form.
func TestInvalidWatches(t *testing.T) {
	for _, tt := range []struct {
		want   string
		change func(*watch.Watch)
	}{
		{`namespace "kcp.system"`, func(w *watch.Watch) { w.Name.Namespace = "kcp.system" }},
		{`name "a/b"`, func(w *watch.Watch) { w.Name.Name = "a/b" }},
		{`want a DNS-1123 subdomain`, func(w *watch.Watch) { w.Name.Name = strings.Repeat("a", 254) }},
		{"manager is not a DNS-1123 label", func(w *watch.Watch) { w.Manager = "a/../b" }},
		{`version ""`, func(w *watch.Watch) { w.Resource.Version = "" }},
		{`version "v*"`, func(w *watch.Watch) { w.Resource.Version = "v*" }},
		{`resource "*"`, func(w *watch.Watch) { w.Resource.Resource = "*" }},
		{`resource "kymas/status": want it without status`, func(w *watch.Watch) {
			w.Resource.Resource = "kymas/status"
			w.Selector.Labels = nil
		}},
		{`resource "kymas/*"`, func(w *watch.Watch) { w.Resource.Resource = "kymas/*" }},
		{`resource "kymas/"`, func(w *watch.Watch) { w.Resource.Resource = "kymas/" }},
		{`resource "kymas/a/b"`, func(w *watch.Watch) { w.Resource.Resource = "kymas/a/b" }},
		{"reviews show no labels", func(w *watch.Watch) { w.Resource.Resource = "kymas/scale" }},
		{`want "spec" for a subresource`, func(w *watch.Watch) {
			w.Resource.Resource = "kymas/scale"
			w.Selector.Labels = nil
			w.Field = core.FieldStatus
		}},
		{`kind: want upper camel case of ASCII such as Deployment, have "kyma"`, func(w *watch.Watch) {
			w.Kind = "kyma"
		}},
		{`"Like" is not a valid label selector operator`, func(w *watch.Watch) {
			w.Selector.Requirements = []watch.Requirement{{Key: "a", Operator: "Like"}}
		}},
		{`namespace selector: label "a b"`, func(w *watch.Watch) {
			w.NamespaceSelector.Labels = map[string]string{"a b": ""}
		}},
		{`resource ""`, func(w *watch.Watch) { w.Resource.Resource = "" }},
		{`group "*"`, func(w *watch.Watch) { w.Resource.Group = "*" }},
		{`field: want "spec" or "status", have "data"`, func(w *watch.Watch) { w.Field = "data" }},
		{`label "-"`, func(w *watch.Watch) { w.Selector.Labels = map[string]string{"-": ""} }},
		{`label "a": "a b" is not a label value`, func(w *watch.Watch) { w.Selector.Labels = map[string]string{"a": "a b"} }},
		{`want values for In and NotIn only, have 0 for "NotIn"`, requirement("a", "NotIn")},
		{`want values for In and NotIn only, have 1 for "Exists"`, requirement("a", "Exists", "b")},
		{`label "a//b"`, requirement("a//b", "Exists")},
		{`"a b" is not a label value`, requirement("a", "In", "a b")},
		{"want a DNS-1123 label as name", condition("A", "true")},
		{`condition "changed": want a unique name`, condition("changed", "true")},
		{`condition "a": want a unique name`, func(w *watch.Watch) {
			w.Conditions = []watch.Condition{{Name: "a", Expression: "true"}, {Name: "a", Expression: "true"}}
		}},
		{`condition "a": want an expression`, condition("a", "")},
	} {
		w := valid()
		if err := w.Validate(); err != nil {
			t.Fatal(err)
		}

		tt.change(&w)
		if err := w.Validate(); !errors.Is(err, watch.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want it to say %q", err, tt.want)
		}
	}
}

// The longest names, and each form that Kubernetes allows, are accepted.
func TestValidWatches(t *testing.T) {
	for name, change := range map[string]func(*watch.Watch){
		"a subresource": func(w *watch.Watch) {
			w.Resource.Resource = "pods/eviction"
			w.Selector.Labels = nil
		},
		"one with labels":      func(w *watch.Watch) { w.Resource.Resource = "pods/resize" },
		"the longest name":     func(w *watch.Watch) { w.Name.Name = strings.Repeat("a", 253) },
		"a key without prefix": requirement("A_b.c", "DoesNotExist"),
		"a key with prefix":    requirement("a.b/C", "In", "", "A_b.c"),
	} {
		w := valid()
		change(&w)
		if err := w.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidateNamesAllProblems(t *testing.T) {
	wrong := valid()
	wrong.Name.Name = "wrong"
	wrong.Manager = ""
	wrong.Field = "data"

	err := watch.Validate([]watch.Watch{valid(), wrong, valid()})
	if !errors.Is(err, watch.ErrInvalid) || !strings.Contains(err.Error(), "manager is not a DNS-1123 label") {
		t.Fatalf("error %v, want one of the watches and one of the manager", err)
	}

	for _, want := range []string{
		`watch "kcp-system/wrong": manager`, `watch "kcp-system/wrong": field`,
		`watch "kcp-system/kyma": duplicate name`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want it to say %q", err, want)
		}
	}
}
