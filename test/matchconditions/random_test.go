package matchconditions

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
)

var (
	seed   = flag.Uint64("matchconditions.seed", 1, "of the random writes")
	writes = flag.Int("matchconditions.writes", 250, "how many random writes are made")
)

// writer makes random writes to few objects, so that each goes through many states.
type writer struct {
	*scene
	*rand.Rand
}

// TestRandomWritesAreSelectedAsTheFilterDoes compares the two for every single write.
func TestRandomWritesAreSelectedAsTheFilterDoes(t *testing.T) {
	s := newScene(t)
	s.watch(everything, false)
	s.watch(selection, true)

	t.Logf("-matchconditions.seed=%d", *seed)

	w := &writer{s, rand.New(rand.NewPCG(*seed, 0))}

	var selected, unselected, refused int

	s.taken()

	for i := range *writes {
		what, status := w.write()
		did, saw := s.check()

		switch {
		case did > 0:
			selected++
		case saw > 0:
			unselected++
		}

		if status >= http.StatusBadRequest {
			refused++
		}

		if t.Failed() {
			t.Fatalf("write %d: %s: status %d", i, what, status)
		}
	}

	s.checkErrors()
	t.Logf("%d writes: %d selected, %d not, %d refused", *writes, selected, unselected, refused)

	if selected < *writes/10 || unselected < *writes/10 || refused > *writes/2 {
		t.Error("want all kinds of writes in good numbers")
	}
}

// write makes one, and says what it was.
func (w *writer) write() (what string, status int) {
	k := []kind{widgets, widgets, gadgets, configMaps}[w.IntN(4)]
	name := fmt.Sprintf("random-%d", w.IntN(3))
	path := k.path(name, "")
	dry := []string{"", "", "", "?dryRun=All"}[w.IntN(4)]

	var method, contentType, body string

	switch n := w.IntN(20); {
	case n < 2:
		method = http.MethodDelete
	case n < 5:
		return w.putRandom(k, name, dry)
	case n < 8 && k.status:
		method, contentType, body = http.MethodPatch, "application/merge-patch+json", `{"status":`+w.value(2)+`}`
		path = k.path(name, "status")
	case n < 10:
		method, contentType, body = http.MethodPatch, "application/merge-patch+json", `{"metadata":{`+w.metadata()+`}}`
	default:
		method, contentType, body = http.MethodPatch, "application/merge-patch+json", `{`+w.content(k)+`}`
	}

	status, _ = w.do(method, path+dry, contentType, body)
	if status == http.StatusNotFound {
		body = fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,%s},%s}`, k.apiVersion, k.name, name, w.metadata(), w.content(k))
		method, path = http.MethodPost, k.path("", "")
		status, _ = w.do(method, path+dry, "application/json", body)
	}

	return fmt.Sprintf("%s %s%s %s", method, path, dry, body), status
}

// putRandom replaces one field, in a notation that a patch would lose.
func (w *writer) putRandom(k kind, name, dry string) (what string, status int) {
	field, raw, _ := strings.Cut(w.content(k), ":")
	field = strings.Trim(field, `"`)

	if w.IntN(4) == 0 {
		raw = ""
	}

	subresource := ""
	if k.status && w.IntN(3) == 0 {
		field, subresource = "status", "status"
	}

	return fmt.Sprintf("PUT %s%s %s: %s", k.path(name, subresource), dry, field, raw),
		w.put(k, name, subresource, dry, map[string]string{field: raw})
}

// content is one top-level field of an object.
func (w *writer) content(k kind) string {
	if k == configMaps {
		return []string{`"data":{"a":"1"}`, `"data":{"a":"2"}`, `"data":{"a":null}`, `"data":null`, `"binaryData":{"b":"YQ=="}`, `"binaryData":{}`}[w.IntN(6)]
	}

	return fmt.Sprintf("%q:%s", []string{"spec", "spec", "spec", "data", "status"}[w.IntN(5)], w.value(3))
}

func (w *writer) metadata() string {
	return []string{
		`"labels":{"a":"b"}`, `"labels":null`, `"annotations":{"a":"b"}`, `"annotations":{"a":"c"}`,
		`"finalizers":["a.example.com/b"]`, `"finalizers":["a.example.com/b","a.example.com/c"]`, `"finalizers":null`, `"finalizers":[]`,
	}[w.IntN(8)]
}

// value is any JSON, of few values so that equal ones meet, in several notations.
func (w *writer) value(depth int) string {
	if depth == 0 || w.IntN(3) == 0 {
		return []string{`null`, `1`, `1.0`, `1e0`, `2`, `true`, `"1"`, `""`, `{}`, `[]`}[w.IntN(10)]
	}

	if w.IntN(3) == 0 {
		return "[" + w.value(depth-1) + "," + w.value(depth-1) + "]"
	}

	members := []string{`"a":` + w.value(depth-1), `"b":` + w.value(depth-1)}
	w.Shuffle(2, func(i, j int) { members[i], members[j] = members[j], members[i] })

	return "{" + strings.Join(members[:1+w.IntN(2)], ",") + "}"
}
