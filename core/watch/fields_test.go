package watch_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/watchtest"
)

const one = `{"apiVersion":"operator.kyma-project.io/v1beta2","kind":"Watcher",
	"metadata":{"name":"kyma","namespace":"kcp-system","labels":{"operator.kyma-project.io/managed-by":"lifecycle-manager","x":"y"},
		"annotations":{"a":"b"},"managedFields":[{"fieldsV1":{"f:spec":{}}}],"finalizers":["f"],"uid":"1"},
	"spec":{"labelsToWatch":{"anything":"goes"},"field":"spec","manager":"m",
		"resourceToWatch":{"group":"g","version":"*","resource":"kymas","kind":"Kyma"},
		"labelExpressionsToWatch":[{"key":"a","operator":"In","values":["b"]},{"key":"c","operator":"Exists"}],
		"namespaceSelector":{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"d","operator":"Exists"}]},
		"matchConditions":[{"name":"n","expression":"true"}],
		"serviceInfo":{"name":"e","namespace":"n","port":1},"gateway":{"selector":{"matchLabels":{"a":"b"}}}},
	"status":{"state":"Ready","conditions":[{"type":"New"}],"newer":{"any":["thing"]}}}`

func TestUnknownFieldsAreNamed(t *testing.T) {
	t.Parallel()

	if document, err := watch.ParseDocument([]byte(one)); err != nil || len(must(document.Watches())) != 1 {
		t.Fatalf("a Watcher with all fields: %v", err)
	}
	list := `{"kind":"List","metadata":{"resourceVersion":"","continue":"x"},"items":[` + one + "," + one + "]}"
	if document, err := watch.ParseDocument([]byte(list)); err != nil || len(must(document.Watches())) != 2 {
		t.Fatalf("a list: %v", err)
	}

	for name, tc := range map[string]struct {
		old, text string
		says      []string
	}{
		"a label selector":           {"labelsToWatch", "labelsToWach", []string{`"spec.labelsToWach"`, `want "labelsToWatch"`}},
		"in lower case":              {"labelsToWatch", "labelstowatch", []string{`"spec.labelstowatch"`, `want "labelsToWatch"`}},
		"the singular":               {"labelExpressionsToWatch", "labelExpressionToWatch", []string{`"spec.labelExpressionToWatch"`, `want "labelExpressionsToWatch"`}},
		"a selector of Kubernetes":   {`"namespaceSelector":{"matchLabels"`, `"namespaceSelector":{"matchLabel"`, []string{`"spec.namespaceSelector.matchLabel"`, `"matchLabels"`}},
		"in the second expression":   {`{"key":"c","operator":"Exists"}`, `{"key":"c","operater":"Exists"}`, []string{`"spec.labelExpressionsToWatch[1].operater"`, `want "operator"`}},
		"of the resource":            {`"version":"*"`, `"versions":"*"`, []string{`"spec.resourceToWatch.versions"`, `want "version"`}},
		"the spec":                   {`"spec":{"labels`, `"specs":{"labels`, []string{`"specs"`, `want "spec"`}},
		"the namespace":              {`"namespace":"kcp-system"`, `"namespce":"kcp-system"`, []string{`"metadata.namespce"`, `want "namespace"`}},
		"of the spec, at the top":    {`"kind":"Watcher"`, `"kind":"Watcher","resourceToWatch":{}`, []string{`"resourceToWatch"`, "in spec"}},
		"a field of another program": {`"manager":"m"`, `"manager":"m","zzz":1`, []string{`"spec.zzz"`, "want one of", "labelsToWatch"}},
	} {
		text := strings.Replace(one, tc.old, tc.text, 1)
		if text == one {
			t.Fatalf("%s: nothing is changed", name)
		}

		inList := `{"kind":"WatcherList","items":[` + one + "," + text + "]}"
		for place, text := range map[string]string{`"`: text, `"items[1].`: inList} {
			_, err := watch.ParseDocument([]byte(text))
			for n, want := range tc.says {
				if n == 0 {
					want = place + strings.Trim(want, `"`)
				}
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, want %s", name, err, want)
				}
			}
		}
	}

	both := strings.Replace(strings.Replace(one, "labelsToWatch", "labelsToWach", 1), `"field"`, `"fields"`, 1)
	_, err := watch.ParseDocument([]byte(both))
	if err == nil || !strings.Contains(err.Error(), "spec.fields") || !strings.Contains(err.Error(), "spec.labelsToWach") {
		t.Errorf("two fields: %v, want both", err)
	}

	for _, text := range []string{"", "[", "1", `"a"`, "[1]", `{"kind":1}`, `{"spec":[]}`} {
		if document, err := watch.ParseDocument([]byte(text)); err == nil {
			t.Errorf("%s: %v", text, document)
		}
	}
}

// Each field that a text has is known, so that an agent reads what an installer writes.
func TestEachFieldIsKnown(t *testing.T) {
	t.Parallel()

	whole, changed := watchtest.Watches()
	watches := []watch.Watch{whole}
	for _, w := range changed {
		watches = append(watches, w)
	}

	text, err := json.Marshal(watch.DocumentOf(watches))
	if err != nil {
		t.Fatal(err)
	}
	document, err := watch.ParseDocument(text)
	if err != nil || !reflect.DeepEqual(document, watch.DocumentOf(watches)) {
		t.Errorf("%v, %v", document, err)
	}
}

func FuzzParseDocument(f *testing.F) {
	f.Add(one)
	f.Add(deployed)
	f.Add(`{"items":[{"items":[{}]}],"kind":"List"}`)

	f.Fuzz(func(t *testing.T, text string) {
		document, err := watch.ParseDocument([]byte(text))
		if err != nil {
			return
		}

		again, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.ParseDocument(again); err != nil {
			t.Errorf("%s: %v", again, err)
		}
	})
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(fmt.Sprint(err))
	}
	return value
}
