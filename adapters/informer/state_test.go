package informer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// states are states of one object. Each pair of them is an update.
func states() []string {
	return []string{
		`{"metadata":{"name":"o"}}`,
		`{"metadata":{"name":"o"},"spec":{"a":1}}`,
		`{"metadata":{"name":"o"},"spec":{"a":2}}`,
		`{"metadata":{"name":"o"},"spec":null}`,
		`{"metadata":{"name":"o"},"spec":{"a":1},"data":{"a":1}}`,
		`{"metadata":{"name":"o"},"spec":{"a":1},"status":{"a":1}}`,
		`{"metadata":{"name":"o"},"spec":{"a":1},"status":{"a":2}}`,
		`{"metadata":{"name":"o"},"data":{"a":"b"}}`,
		`{"metadata":{"name":"o"},"data":{"a":"c"}}`,
		`{"metadata":{"name":"o"},"data":{"a":"c"},"immutable":true}`,
		`{"metadata":{"name":"o"},"data":null}`,
		`{"metadata":{"name":"o","labels":{"a":"b"}},"spec":{"a":1}}`,
		`{"metadata":{"name":"o","labels":{"a":"c"}},"spec":{"a":1}}`,
		`{"metadata":{"name":"o","labels":null},"spec":{"a":1}}`,
		`{"metadata":{"name":"o","annotations":{"a":"b"}},"spec":{"a":1}}`,
		`{"metadata":{"name":"o","annotations":{"a":"b"}},"data":{"a":"b"}}`,
		`{"metadata":{"name":"o","annotations":{"operator.kyma-project.io/owned-by":"a/b"}},"spec":{"a":1}}`,
		`{"metadata":{"name":"o","annotations":{"operator.kyma-project.io/owned-by":"a/c"}},"spec":{"a":1}}`,
		`{"metadata":{"name":"o","finalizers":["a"]},"spec":{"a":1}}`,
		`{"metadata":{"name":"o","finalizers":["a","b"]},"spec":{"a":1}}`,
		`{"metadata":{"name":"o","finalizers":["a"],"deletionTimestamp":"2026-11-22T00:00:00Z"},"spec":{"a":1}}`,
		`{"metadata":{"name":"o","deletionTimestamp":"2026-11-22T00:00:00Z"},"spec":{"a":1}}`,
		`{"metadata":{"name":"o","ownerReferences":[{"name":"a"}]},"spec":{"a":1}}`,
		`{"metadata":{"name":"o","ownerReferences":[{"name":"a"}]}}`,
		`{"metadata":{"name":"o","managedFields":[{"manager":"a"}],"resourceVersion":"2"}}`,
		`{"metadata":{"name":"o","generation":2},"spec":{"a":1}}`,
		`{"metadata":{"name":"o","generation":2}}`,
	}
}

// A filter decides on two digests as on the two objects. Where the digests are equal, the source
// does not ask it.
func TestDigestsDecideAsObjects(t *testing.T) {
	for _, field := range []core.Field{core.FieldSpec, core.FieldStatus} {
		p := parts{field: field, owner: core.OwnerAnnotation}
		for _, before := range states() {
			for _, after := range states() {
				c := core.Change{Operation: core.OperationUpdate, Old: object(t, before), New: object(t, after)}
				digests := core.Change{
					Operation: core.OperationUpdate, Old: decode(digestOf(t, p, before)), New: decode(digestOf(t, p, after)),
				}

				if field == core.FieldStatus {
					c.Subresource = "status"
					digests.Subresource = "status"
				}

				want := core.Changed(&c)
				if got := core.Changed(&digests); got != want {
					t.Errorf("%s: %t for the digests\n%s\n%s\nof\n%s\n%s, want %t", field, got, digestOf(t, p, before).asJSON(),
						digestOf(t, p, after).asJSON(), before, after, want)
				}

				if want && *digestOf(t, p, before) == *digestOf(t, p, after) {
					t.Errorf("%s: the digests of\n%s\n%s\nare equal", field, before, after)
				}
			}
		}
	}
}

// The status of an object without spec has its own writes if it is a subresource.
func TestStatusIsNoContentWithASubresource(t *testing.T) {
	p := parts{field: core.FieldSpec, hasStatus: true}
	one := digestOf(t, p, `{"metadata":{"name":"o"},"data":{"a":1},"status":{"a":1}}`)
	other := digestOf(t, p, `{"metadata":{"name":"o"},"data":{"a":1},"status":{"a":2}}`)
	if *one != *other {
		t.Errorf("digests %s and %s, want equal ones", one.asJSON(), other.asJSON())
	}
}

func TestGenerationStandsForTheSpec(t *testing.T) {
	p := parts{field: core.FieldSpec, generation: true}
	one := digestOf(t, p, `{"metadata":{"name":"o","generation":1}}`)
	other := digestOf(t, p, `{"metadata":{"name":"o","generation":2}}`)
	c := core.Change{Operation: core.OperationUpdate, Old: decode(one), New: decode(other)}
	if !core.Changed(&c) || c.New.Generation != 2 {
		t.Errorf("no change between %s and %s", one.asJSON(), other.asJSON())
	}
}

// An object of 10 kB takes less than 500 bytes.
func TestDigestIsSmall(t *testing.T) {
	raw := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"o","uid":"1","labels":{"a":"b"},`+
		`"annotations":{"a":%q}},"data":{"a":%q}}`, strings.Repeat("a", 5_000), strings.Repeat("b", 5_000))
	s, err := parts{field: core.FieldSpec}.parseObject([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.digest.asJSON()) > 500 || s.name.Name != "o" {
		t.Errorf("state %+v, want a digest of at most 500 bytes", s)
	}
}

// A user fills the parts that a digest keeps. Two such objects still differ, and an object with
// finalizers still has some.
func TestPartsOfADigestAreBounded(t *testing.T) {
	p := parts{field: core.FieldSpec, owner: core.OwnerAnnotation}
	const many = 20_000
	for name, part := range map[string]string{
		"labels":     `"labels":{"a":"b","x":"` + strings.Repeat("x", many) + `%s"}`,
		"finalizers": `"finalizers":["a","` + strings.Repeat("x", many) + `%s"]`,
		"owner":      `"annotations":{"operator.kyma-project.io/owned-by":"a/` + strings.Repeat("x", many) + `%s"}`,
	} {
		before := digestOf(t, p, `{"metadata":{"name":"o",`+fmt.Sprintf(part, "1")+`},"spec":{"a":1}}`)
		after := digestOf(t, p, `{"metadata":{"name":"o",`+fmt.Sprintf(part, "2")+`},"spec":{"a":1}}`)
		if size := len(before.asJSON()); size > 500 {
			t.Errorf("%s: a digest of %d bytes, want at most 500", name, size)
		}
		if *before == *after {
			t.Errorf("%s: the digests of two objects are equal: %s", name, before.asJSON())
		}

		c := core.Change{Operation: core.OperationUpdate, Old: decode(before), New: decode(after)}
		if want := name != "finalizers"; core.Changed(&c) != want {
			t.Errorf("%s: the change counts: %t, want %t", name, !want, want)
		}
		if _, err := c.Owner(); (err != nil) != (name == "owner") {
			t.Errorf("%s: error %v of the owner", name, err)
		}
		if want := name == "finalizers"; (c.New.Finalizers > 0) != want {
			t.Errorf("%s: %d finalizers", name, c.New.Finalizers)
		}
	}
}

func TestListIsReadItemByItem(t *testing.T) {
	for text, want := range map[string]int{
		`{"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}],"metadata":{"resourceVersion":"7"}}`: 2,
		`{"kind":"List","metadata":{"resourceVersion":"7"},"items":null}`:                                    0,
		`{"metadata":{"resourceVersion":"7"},"items":[],"other":{"a":[1]}}`:                                  0,
		`{"items":[{"metadata":{"name":1}}]}`:                                                                -1,
		`{"items":{}}`:                                                                                       -1,
		`{"items":[{}`:                                                                                       -1,
		`[]`:                                                                                                 -1,
		`null`:                                                                                               -1,
		`{"metadata":1}`:                                                                                     -1,
	} {
		l, err := readList(strings.NewReader(text), parts{})
		switch {
		case want < 0 && err == nil:
			t.Errorf("%s: no error", text)
		case want >= 0 && (err != nil || len(l.Items) != want || l.ResourceVersion != "7"):
			t.Errorf("%s: %v, %+v, want %d items", text, err, l, want)
		}
	}
}

// The initial objects of a watch prove nothing before the bookmark at their end.
func TestInitialObjectsProveNothing(t *testing.T) {
	const added = `{"type":"ADDED","object":{"metadata":{"name":"a"}}}`
	const end = `{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}`
	proofs := 0
	limit := newLimit(t.Context())
	defer limit.endRequest()

	f := &frames{
		limit: limit, listed: func() {},
		json: json.NewDecoder(strings.NewReader(added + added + end + added)), lists: true, works: func() { proofs++ },
	}
	for _, want := range []int{0, 0, 1, 2} {
		if _, _, err := f.Decode(); err != nil || proofs != want {
			t.Errorf("%v, and %d proofs, want %d", err, proofs, want)
		}
	}
}

// FuzzRead checks that whatever is read has a digest that a filter can read.
func FuzzRead(f *testing.F) {
	for _, text := range states() {
		f.Add([]byte(text))
		f.Add([]byte(`{"items":[` + text + `]}`))
	}

	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, p := range []parts{{field: core.FieldSpec}, {field: core.FieldStatus}, {field: core.FieldSpec, generation: true}} {
			_, _ = readList(bytes.NewReader(raw), p)
			s, err := p.parseObject(raw)
			if err != nil {
				continue
			}
			if !json.Valid(s.digest.asJSON()) {
				t.Errorf("digest %s of %s is not JSON", s.digest.asJSON(), raw)
			}

			same, _ := p.parseObject(raw)
			if *same.digest != *s.digest {
				t.Errorf("two digests of %s: %s and %s", raw, s.digest.asJSON(), same.digest.asJSON())
			}
		}
	})
}

func object(t *testing.T, raw string) *core.Object {
	t.Helper()

	o, err := core.DecodeObject([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func digestOf(t *testing.T, p parts, raw string) *digest {
	t.Helper()

	s, err := p.parseObject([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return s.digest
}
