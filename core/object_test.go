package core_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/rawjson"
)

const deployment = `{
	"apiVersion": "apps/v1", "kind": "Deployment",
	"metadata": {
		"name": "web", "namespace": "default", "generation": 7, "resourceVersion": "42",
		"labels": {"app": "web", "empty": "", "quote\"d": "ä"}, "annotations": {"note": "a\nb"},
		"finalizers": ["a", "b"], "deletionTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"manager": "kubectl"}]
	},
	"spec": {"replicas": 1}, "status": null, "more": [1]
}`

func decode(t *testing.T, text string) *core.Object {
	t.Helper()

	o, err := core.DecodeObject([]byte(text))
	if err != nil {
		t.Fatalf("DecodeObject(%s) = %v", text, err)
	}

	return o
}

func TestDecodeObject(t *testing.T) {
	t.Parallel()

	o := decode(t, deployment)
	want := &core.Object{
		GVK:        schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		Name:       types.NamespacedName{Namespace: "default", Name: "web"},
		Generation: 7,
		Deleting:   true,
		Finalizers: 2,
	}

	if diff := cmp.Diff(want, o, cmpopts.IgnoreUnexported(core.Object{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	for field, want := range map[string]string{
		"spec": `{"replicas": 1}`, "more": `[1]`, "status": "", "absent": "", "kind": "", "metadata": "",
	} {
		if got := o.Field(field); string(got) != want || (got == nil) != (want == "") {
			t.Errorf("Field(%s) = %q, want %q", field, got, want)
		}
	}

	checkText(t, "label app", o.Label, "app", "web", true)
	checkText(t, "label empty", o.Label, "empty", "", true)
	checkText(t, "escaped label", o.Label, `quote"d`, "ä", true)
	checkText(t, "absent label", o.Label, "note", "", false)
	checkText(t, "annotation", o.Annotation, "note", "a\nb", true)
	checkText(t, "absent annotation", o.Annotation, "app", "", false)
}

func checkText(t *testing.T, name string, get func(string) (string, bool), key, want string, wantOK bool) {
	t.Helper()

	if got, ok := get(key); got != want || ok != wantOK {
		t.Errorf("%s = %q, %v, want %q, %v", name, got, ok, want, wantOK)
	}
}

func TestAbsentObject(t *testing.T) {
	t.Parallel()

	o, err := core.DecodeObject([]byte(" null "))
	if o != nil || err != nil {
		t.Errorf("DecodeObject(null) = %v, %v, want nil, nil", o, err)
	}

	if o.Field("spec") != nil {
		t.Error("a nil object has a spec")
	}

	checkText(t, "label", o.Label, "a", "", false)
	checkText(t, "annotation", o.Annotation, "a", "", false)

	if decode(t, "{}") == nil {
		t.Error("DecodeObject({}) = nil, want an object without anything")
	}
}

func TestReadObjectInsideAnotherText(t *testing.T) {
	t.Parallel()

	r := rawjson.NewReader([]byte(`{"object":` + deployment + `,"oldObject":null,"dryRun":true}`))
	read := map[string]*core.Object{}
	dryRun := false

	err := r.Object(func(name string) (err error) {
		if name == "dryRun" {
			dryRun, err = r.Bool()

			return err
		}

		read[name], err = core.ReadObject(r)

		return err
	})
	if err := errors.Join(err, r.End()); err != nil {
		t.Fatal(err)
	}

	if o, old := read["object"], read["oldObject"]; o == nil || o.Name.Name != "web" || old != nil || !dryRun {
		t.Errorf("object = %v, oldObject = %v, dryRun = %v", o, old, dryRun)
	}
}

func TestDecodeObjectRefuses(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		``:                                   "the text ends at byte 0",
		`[]`:                                 "want '{' at byte 0",
		`"x"`:                                "want '{'",
		`{} {}`:                              "want the end of the text at byte 3",
		deployment[:len(deployment)-1]:       "the text ends",
		`{"kind":7}`:                         "want a string at byte 8",
		`{"metadata":[]}`:                    "want '{' at byte 12",
		`{"metadata":{"name":{}}}`:           "want a string",
		`{"metadata":{"generation":"7"}}`:    `metadata.generation: want an integer of 64 bits, have "\"7\""`,
		`{"metadata":{"generation":1.5}}`:    "want an integer",
		`{"metadata":{"generation":1e99}}`:   "want an integer",
		`{"spec":` + strings.Repeat("[", 20): "the text ends",
	} {
		o, err := core.DecodeObject([]byte(text))

		switch {
		case o != nil || !errors.Is(err, core.ErrInvalidObject):
			t.Errorf("DecodeObject(%s) = %v, %v, want ErrInvalidObject", text, o, err)
		case !strings.Contains(err.Error(), want):
			t.Errorf("DecodeObject(%s): error is %q, want it to say %q", text, err, want)
		}
	}
}

func TestNullsAndRepeatedNames(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, text string
		check      func(o *core.Object) bool
	}{
		{"null metadata", `{"metadata":null}`, func(o *core.Object) bool { return o.Name.Name == "" }},
		{"null name", `{"metadata":{"name":null,"generation":null}}`, func(o *core.Object) bool { return o.Name.Name == "" && o.Generation == 0 }},
		{"null timestamp", `{"metadata":{"deletionTimestamp":null}}`, func(o *core.Object) bool { return !o.Deleting }},
		{"null finalizers", `{"metadata":{"finalizers":null}}`, func(o *core.Object) bool { return o.Finalizers == 0 }},
		{"null labels", `{"metadata":{"labels":null}}`, func(o *core.Object) bool { _, ok := o.Label("a"); return !ok }},
		{"last name wins", `{"metadata":{"name":"a","name":"b"}}`, func(o *core.Object) bool { return o.Name.Name == "b" }},
		{"null leaves a text", `{"kind":"A","kind":null}`, func(o *core.Object) bool { return o.GVK.Kind == "A" }},
		{"last spec wins", `{"spec":1,"spec":2}`, func(o *core.Object) bool { return string(o.Field("spec")) == "2" }},
		{"last spec wins, null", `{"spec":1,"spec":null}`, func(o *core.Object) bool { return o.Field("spec") == nil }},
		{"last timestamp wins", `{"metadata":{"deletionTimestamp":"x","deletionTimestamp":null}}`, func(o *core.Object) bool { return !o.Deleting }},
		{"metadata twice", `{"metadata":{"name":"a"},"metadata":{"namespace":"b"}}`, func(o *core.Object) bool { return o.Name.String() == "b/a" }},
		{"escaped names", `{"m\u0065tadata":{"nam\u0065":"a"}}`, func(o *core.Object) bool { return o.Name.Name == "a" }},
		{"other case", `{"METADATA":{"name":"a"},"Spec":1}`, func(o *core.Object) bool { return o.Name.Name == "" && o.Field("spec") == nil }},
		{"core group", `{"apiVersion":"v1","kind":"A"}`, func(o *core.Object) bool { return o.GVK.Group == "" && o.GVK.Version == "v1" }},
		{"number as label", `{"metadata":{"labels":{"a":1}}}`, func(o *core.Object) bool { _, ok := o.Label("a"); return !ok }},
		{"labels that are no map", `{"metadata":{"labels":["a"]}}`, func(o *core.Object) bool { _, ok := o.Label("a"); return !ok }},
	}

	for _, tt := range tests {
		if o := decode(t, tt.text); !tt.check(o) {
			t.Errorf("%s: %s is read as %+v", tt.name, tt.text, o)
		}
	}
}

// reference is an object as encoding/json reads it.
type reference struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   referenceMetadata `json:"metadata"`
	Spec       any               `json:"spec"`
	Status     any               `json:"status"`
}

type referenceMetadata struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace"`
	Generation        int64             `json:"generation"`
	DeletionTimestamp any               `json:"deletionTimestamp"`
	Finalizers        []any             `json:"finalizers"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
}

func FuzzDecodeObject(f *testing.F) {
	for _, seed := range []string{
		deployment, `null`, `{}`, `[]`, `{"metadata":null}`, `{"metadata":{"generation":1.0}}`, `{"spec":1,"spec":null}`,
		`{"metadata":{"labels":{"a":null},"annotations":{"b":"\u00e4"}}}`, `{"metadata":{"name":"a"},"metadata":{"namespace":"b"}}`,
	} {
		f.Add([]byte(seed))
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := core.DecodeObject(text)
		if err != nil {
			if !errors.Is(err, core.ErrInvalidObject) {
				t.Fatalf("error %v is not ErrInvalidObject", err)
			}
		} else if !json.Valid(text) {
			t.Fatalf("%q is no JSON, but decoded", text)
		}

		// encoding/json takes names in any case, Kubernetes does not; and its maps forget that a name was repeated.
		var want reference
		if json.Unmarshal(text, &want) != nil || oddNames(text) {
			return
		}

		checkReference(t, text, o, err, &want)
	})
}

// oddNames reports whether a name occurs twice in one object, be it in another case.
func oddNames(text []byte) (odd bool) {
	r := rawjson.NewReader(text)
	seen := map[string]bool{}
	_ = r.Object(func(name string) error {
		raw, err := r.Skip()
		folded := strings.ToLower(strings.ToUpper(name)) // The long s and the Kelvin sign, too.
		odd = odd || seen[folded] || folded != name && known(folded) || oddNames(raw)
		seen[folded] = true

		return err
	})

	return odd
}

func known(name string) bool {
	names := []string{
		"apiversion", "kind", "metadata", "spec", "status", "name", "namespace", "generation", "deletiontimestamp",
		"finalizers", "labels", "annotations",
	}

	return slices.Contains(names, name)
}

func checkReference(t *testing.T, text []byte, o *core.Object, err error, want *reference) {
	t.Helper()

	if err != nil {
		t.Fatalf("%q: %v, but encoding/json reads it", text, err)
	}

	if o == nil {
		if strings.TrimSpace(string(text)) != "null" {
			t.Fatalf("%q is read as an absent object", text)
		}

		return
	}

	got := fmt.Sprintln(o.GVK, o.Name.Name, o.Name.Namespace, o.Generation, o.Deleting, o.Finalizers, o.Field("spec") != nil, o.Field("status") != nil)
	m := want.Metadata
	gvk := schema.FromAPIVersionAndKind(want.APIVersion, want.Kind)

	if exp := fmt.Sprintln(gvk, m.Name, m.Namespace, m.Generation, m.DeletionTimestamp != nil, len(m.Finalizers), want.Spec != nil, want.Status != nil); got != exp {
		t.Fatalf("%q is read as\n%swant\n%s", text, got, exp)
	}

	for key, value := range m.Labels {
		checkText(t, "label", o.Label, key, value, true)
	}

	for key, value := range m.Annotations {
		checkText(t, "annotation", o.Annotation, key, value, true)
	}
}
