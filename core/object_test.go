package core_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/rawjson"
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

// The fields that filters and events need are decoded, and all other fields stay bytes.
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

// Null is no object, and all methods of a nil object are safe.
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

// An object inside of a larger text is decoded, and the rest of the text is left to the caller.
func TestDecodeObjectPrefix(t *testing.T) {
	t.Parallel()

	for text, rest := range map[string]string{
		deployment + `,"oldObject":null`: `,"oldObject":null`,
		` null , 1`:                      ` , 1`,
		`{} {}`:                          ` {}`,
		`{"metadata":{"name":"web"}}x`:   `x`,
	} {
		o, n, err := core.DecodeObjectPrefix([]byte(text))
		if err != nil || text[n:] != rest {
			t.Errorf("DecodeObjectPrefix(%s) = %d, %v, want the rest %q", text, n, err, rest)
		}
		if isNull := strings.HasPrefix(text, " null"); (o == nil) != isNull {
			t.Errorf("DecodeObjectPrefix(%s) = %+v", text, o)
		}
	}

	o, n, err := core.DecodeObjectPrefix([]byte(`{"kind":7}`))
	if !errors.Is(err, core.ErrInvalidObject) || o != nil || n != 0 {
		t.Errorf("DecodeObjectPrefix = %v, %d, %v, want ErrInvalidObject", o, n, err)
	}
}

// An object from a decoded map equals the object from bytes, and shares no memory with the map.
func TestNewObject(t *testing.T) {
	t.Parallel()

	var content map[string]any
	if err := json.Unmarshal([]byte(deployment), &content); err != nil {
		t.Fatal(err)
	}
	o, err := core.NewObject(content)
	if err != nil {
		t.Fatal(err)
	}

	clear(content["metadata"].(map[string]any)["labels"].(map[string]any))
	if diff := cmp.Diff(decode(t, deployment), o, cmpopts.IgnoreUnexported(core.Object{})); diff != "" {
		t.Errorf("from a map (-from bytes +from map):\n%s", diff)
	}

	checkText(t, "label app", o.Label, "app", "web", true)
	wide := make(map[string]any)
	for i := range 257 {
		wide[fmt.Sprint("m", i)] = i
	}

	for name, content := range map[string]map[string]any{
		"not JSON":      {"spec": func() {}},
		"not an object": {"metadata": 7},
		"too many":      wide,
	} {
		if o, err := core.NewObject(content); !errors.Is(err, core.ErrInvalidObject) || o != nil {
			t.Errorf("%s: NewObject = %v, %v, want ErrInvalidObject", name, o, err)
		}
	}

	if o, err := core.NewObject(nil); err != nil || o != nil {
		t.Errorf("NewObject(nil) = %v, %v, want no object", o, err)
	}
}

// A small text with many members must not become much memory. Members of other fields are not
// decoded, and do not count.
func TestMembersAreBounded(t *testing.T) {
	t.Parallel()

	const most = 256
	members := func(n int) string { return strings.Repeat(`"":0,`, n-1) + `"last":0` }
	for name, text := range map[string]string{
		"top level": `{%s}`, "metadata": `{"metadata":{%s}}`, "metadata twice": `{"metadata":{"a":0},"metadata":{%s}}`,
	} {
		_, err := core.DecodeObject(fmt.Appendf(nil, text, members(most+1)))
		if !errors.Is(err, core.ErrInvalidObject) || !strings.Contains(err.Error(), "more than 256 members") {
			t.Errorf("%s: DecodeObject of 257 members = %v, want ErrInvalidObject", name, err)
		}
	}

	for _, text := range []string{
		`{` + members(most) + `,"metadata":{` + members(most) + `}}`,
		`{"spec":{` + members(10*most) + `},"metadata":{"labels":{` + members(10*most) + `}}}`,
	} {
		decode(t, text)
	}
}

// Every stranger that reaches the webhook can send 8 MiB. An object must not take memory beside its
// bytes.
func TestObjectsTakeLittleMemory(t *testing.T) {
	const (
		size = 8 << 20
		most = 1 << 20
	)
	for name, text := range map[string]string{
		"top level":      `{%s"kind":"A"}`,
		"metadata":       `{"metadata":{%s"name":"a"}}`,
		"spec":           `{"spec":{%s"a":0}}`,
		"labels":         `{"metadata":{"labels":{%s"a":"b"}}}`,
		"finalizers":     `{"metadata":{"finalizers":[{%s"a":0}]}}`,
		"managed fields": `{"metadata":{"managedFields":{%s"a":0}}}`,
	} {
		raw := fmt.Appendf(nil, text, strings.Repeat(`"":0,`, size/len(`"":0,`)))
		got := allocated(func() {
			o, err := core.DecodeObject(raw)
			if err == nil {
				o.Label("a")
				core.Changed(&core.Change{Operation: update, Old: o, New: o})
			}
		})
		if got > most {
			t.Errorf("%s: reading and filtering %d bytes allocates %d bytes, want at most %d", name, len(raw), got, most)
		}
	}
}

// allocated returns how many bytes work allocates, freed ones included.
func allocated(work func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// The error names the place of the fault.
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

// As in an API server, null is absent and the last of several equal names counts.
func TestNullsAndRepeatedNames(t *testing.T) {
	t.Parallel()

	type object = core.Object
	noLabel := func(o *object) bool {
		_, found := o.Label("a")
		return !found
	}
	named := func(name string) func(o *object) bool {
		return func(o *object) bool { return o.Name.String() == name }
	}

	tests := []struct {
		name, text string
		check      func(o *object) bool
	}{
		{"null metadata", `{"metadata":null}`, named("/")},
		{"null name", `{"metadata":{"name":null}}`, named("/")},
		{"null generation", `{"metadata":{"generation":null}}`, func(o *object) bool { return o.Generation == 0 }},
		{"null timestamp", `{"metadata":{"deletionTimestamp":null}}`, func(o *object) bool { return !o.Deleting }},
		{"null finalizers", `{"metadata":{"finalizers":null}}`, func(o *object) bool { return o.Finalizers == 0 }},
		{"null labels", `{"metadata":{"labels":null}}`, noLabel},
		{"last name wins", `{"metadata":{"name":"a","name":"b"}}`, named("/b")},
		{"null leaves a text", `{"kind":"A","kind":null}`, func(o *object) bool { return o.GVK.Kind == "A" }},
		{"last spec wins", `{"spec":1,"spec":2}`, func(o *object) bool { return string(o.Field("spec")) == "2" }},
		{"last spec wins, null", `{"spec":1,"spec":null}`, func(o *object) bool { return o.Field("spec") == nil }},
		{
			"last timestamp wins", `{"metadata":{"deletionTimestamp":"x","deletionTimestamp":null}}`,
			func(o *object) bool { return !o.Deleting },
		},
		{"metadata twice", `{"metadata":{"name":"a"},"metadata":{"namespace":"b"}}`, named("b/a")},
		{"escaped names", `{"m\u0065tadata":{"nam\u0065":"a"}}`, named("/a")},
		{"name in another case", `{"METADATA":{"name":"a"}}`, named("/")},
		{"spec in another case", `{"Spec":1}`, func(o *object) bool { return o.Field("spec") == nil }},
		{
			"core group", `{"apiVersion":"v1","kind":"A"}`,
			func(o *object) bool { return o.GVK.Group == "" && o.GVK.Version == "v1" },
		},
		{"number as label", `{"metadata":{"labels":{"a":1}}}`, noLabel},
		{"labels that are no map", `{"metadata":{"labels":["a"]}}`, noLabel},
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
		`{"metadata":{"labels":{"a":null},"annotations":{"b":"\u00e4"}}}`,
		`{"metadata":{"name":"a"},"metadata":{"namespace":"b"}}`,
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

		// encoding/json takes names in any case, Kubernetes does not. Its maps do not show repeated
		// names.
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
	_ = r.Object(func(member []byte) error {
		name := string(member)
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

	if err != nil && strings.Contains(err.Error(), "more than 256 members") {
		return
	}
	if err != nil {
		t.Fatalf("%q: %v, but encoding/json reads it", text, err)
	}

	if o == nil {
		if strings.TrimSpace(string(text)) != "null" {
			t.Fatalf("%q is read as an absent object", text)
		}
		return
	}

	m := want.Metadata
	expected := &core.Object{
		GVK:        schema.FromAPIVersionAndKind(want.APIVersion, want.Kind),
		Name:       types.NamespacedName{Namespace: m.Namespace, Name: m.Name},
		Generation: m.Generation,
		Deleting:   m.DeletionTimestamp != nil,
		Finalizers: len(m.Finalizers),
	}
	if diff := cmp.Diff(expected, o, cmpopts.IgnoreUnexported(core.Object{})); diff != "" {
		t.Fatalf("%q is read otherwise than by encoding/json (-want +got):\n%s", text, diff)
	}

	if (o.Field("spec") != nil) != (want.Spec != nil) || (o.Field("status") != nil) != (want.Status != nil) {
		t.Fatalf("%q has the spec %s and the status %s", text, o.Field("spec"), o.Field("status"))
	}

	for key, value := range m.Labels {
		checkText(t, "label", o.Label, key, value, true)
	}

	for key, value := range m.Annotations {
		checkText(t, "annotation", o.Annotation, key, value, true)
	}
}

// Events about one object merge, although they describe different writes.
func TestKeyIdentifiesTheObjectToLookAt(t *testing.T) {
	t.Parallel()

	base := core.WatchEvent{
		Owner:      types.NamespacedName{Namespace: "a", Name: "b"},
		Watched:    types.NamespacedName{Namespace: "c", Name: "d"},
		WatchedGVK: schema.GroupVersionKind{Group: "e", Version: "f", Kind: "g"},
	}

	tests := map[string]struct {
		change func(e *core.WatchEvent)
		same   bool
	}{
		"resync":     {func(e *core.WatchEvent) { e.Resync = true }, false},
		"owner":      {func(e *core.WatchEvent) { e.Owner.Name = "x" }, false},
		"watched":    {func(e *core.WatchEvent) { e.Watched.Namespace = "" }, false},
		"gvk":        {func(e *core.WatchEvent) { e.WatchedGVK.Version = "x" }, false},
		"operation":  {func(e *core.WatchEvent) { e.Operation = core.OperationDelete }, true},
		"field":      {func(e *core.WatchEvent) { e.Field = core.FieldStatus }, true},
		"generation": {func(e *core.WatchEvent) { e.Generation = 7 }, true},
		"time":       {func(e *core.WatchEvent) { e.Time = time.Unix(1, 0) }, true},
		"trace":      {func(e *core.WatchEvent) { e.TraceParent = "x" }, true},
	}

	for name, tt := range tests {
		other := base
		tt.change(&other)
		if got := base.Key() == other.Key(); got != tt.same {
			t.Errorf("another %s: equal keys = %v, want %v", name, got, tt.same)
		}
	}
}

func TestNewBatchHasNoNumbers(t *testing.T) {
	t.Parallel()

	batch := core.NewBatch(core.WatchEvent{Generation: 1}, core.WatchEvent{Resync: true})
	want := core.Batch{Events: []core.Numbered{{WatchEvent: core.WatchEvent{Generation: 1}}, {WatchEvent: core.WatchEvent{Resync: true}}}}
	if diff := cmp.Diff(want, batch); diff != "" {
		t.Errorf("NewBatch (-want +got):\n%s", diff)
	}

	if words := batch.Events[0].KindWord() + " " + batch.Events[1].KindWord(); words != "changed resync" {
		t.Errorf("KindWords %q", words)
	}
	beat := core.Batch{Heartbeat: &core.Heartbeat{}}
	if claims := (core.Batch{Source: "r", Epoch: "e"}); !claims.IsEmpty() || batch.IsEmpty() || beat.IsEmpty() {
		t.Error("a batch with events or a heartbeat is empty, or one with claims is not")
	}
}
