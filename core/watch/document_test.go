package watch_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/watchtest"
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

func TestDefaultsOfAWatcher(t *testing.T) {
	const text = `{"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "List", "items": [{"kind": "Watcher",
		"metadata": {"name": "w", "labels": {"operator.kyma-project.io/managed-by": "m"}}, "spec": {"gateway": {}}}]}`
	want := []watch.Watch{{Name: types.NamespacedName{Namespace: "default", Name: "w"}, Manager: "m"}}
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
