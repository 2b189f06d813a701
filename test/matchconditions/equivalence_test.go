package matchconditions

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
)

// check compares the writes since the last check: the filter, asked about all of them, must select
// those for which the conditions called the webhook. It returns how many were selected, and how
// many there were.
func (s *scene) check() (selected, seen int) {
	s.t.Helper()
	reviews := s.taken()
	all, some := reviews[everything], reviews[selection]
	if all[admission.Accepted] != sum(some) {
		s.t.Errorf("the filter lets pass %d of %v, and the conditions %v", all[admission.Accepted], all, some)
	}

	if sum(some) != some[admission.Accepted] {
		s.t.Errorf("the conditions select writes that the filter does not: %v", some)
	}
	return all[admission.Accepted], sum(all)
}

const (
	mib = 1 << 20

	label      = `{"metadata":{"labels":{"a":"b"}}}`
	labelled   = `"metadata":{"labels":{"a":"b"}},"spec":1`
	note       = `{"metadata":{"annotations":{"a":"b"}}}`
	noted      = `"metadata":{"annotations":{"a":"b"}},"spec":1`
	owner      = `{"metadata":{"annotations":{"operator.kyma-project.io/owned-by":"kcp/kyma"}}}`
	otherOwner = `{"metadata":{"annotations":{"operator.kyma-project.io/owned-by":"kcp/other"}}}`
	emptyOwner = `{"metadata":{"annotations":{"operator.kyma-project.io/owned-by":""}}}`
	owned      = `"metadata":{"annotations":{"operator.kyma-project.io/owned-by":"kcp/kyma"}},"spec":1`
	held       = `"metadata":{"finalizers":["a.example.com/b"]},"spec":1`
	heldTwice  = `"metadata":{"finalizers":["a.example.com/b","a.example.com/c"]},"spec":1`
	deployment = `"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},` +
		`"spec":{"containers":[{"name":"a","image":"a"}]}}}`
)

func TestConditionsSelectWhatTheFilterDoes(t *testing.T) {
	s := newScene(t)
	s.watch(everything, false)
	s.watch(selection, true)

	big := strings.Repeat("x", mib)
	large := `"data":{"a":"` + big[:mib-100] + `"}`
	zeros, one := list(mib/2, "0"), list(mib/2, "1")

	// Each write is to an object of its own, made of the first text. Want is how many calls matter.
	tests := []struct {
		name   string
		kind   kind
		object string
		write  write
		want   int
	}{
		{"spec changed", widgets, `"spec":{"a":1}`, s.merge("", `{"spec":{"a":2}}`), 1},
		{"spec as before", widgets, `"spec":{"a":1}`, s.merge("", `{"spec":{"a":1}}`), 0},
		{"labels added", widgets, `"spec":1`, s.merge("", label), 1},
		{"labels changed", widgets, labelled, s.merge("", `{"metadata":{"labels":{"a":"c"}}}`), 1},
		{"labels removed", widgets, labelled, s.merge("", `{"metadata":{"labels":null}}`), 1},
		{"labels as before", widgets, labelled, s.merge("", label), 0},
		{"labels of a Deployment", deployments, deployment, s.merge("", label), 1},
		{"owner added", widgets, `"spec":1`, s.merge("", owner), 1},
		{"owner added to other annotations", widgets, noted, s.merge("", owner), 1},
		{"empty owner added", widgets, noted, s.merge("", emptyOwner), 1},
		{"owner changed", widgets, owned, s.merge("", otherOwner), 1},
		{"owner removed", widgets, owned, s.merge("", `{"metadata":{"annotations":null}}`), 1},
		{"owner as before", widgets, owned, s.merge("", note), 0},
		{"annotation changed", widgets, `"spec":1`, s.merge("", note), 0},
		{"another field changed", widgets, `"spec":{"a":1},"data":1`, s.merge("", `{"data":2}`), 0},
		{"status through the resource", widgets, `"spec":{"a":1}`, s.merge("", `{"status":{"a":2}}`), 0},
		{"spec added", widgets, `"data":1`, s.merge("", `{"spec":{"a":2}}`), 1},
		{"empty spec added", widgets, `"data":1`, s.merge("", `{"spec":{}}`), 1},
		{"spec removed", widgets, `"spec":{"a":1}`, s.merge("", `{"spec":null}`), 1},
		{"spec null for absent", widgets, `"data":1`, s.replace("", "", "spec", `null`), 0},
		{"spec absent for null", widgets, `"spec":null,"data":1`, s.replace("", "", "spec", ``), 0},
		{"spec for null", widgets, `"spec":null`, s.replace("", "", "spec", `false`), 1},
		{"spec that is a list", widgets, `"spec":[1,2]`, s.merge("", `{"spec":[2,1]}`), 1},
		{"spec of another type", widgets, `"spec":"1"`, s.merge("", `{"spec":1}`), 1},
		{"null in spec for absent", widgets, `"spec":{"a":1}`, s.replace("", "", "spec", `{"a":1,"b":null}`), 1},
		{"1.0 for 1", widgets, `"spec":{"a":1}`, s.replace("", "", "spec", `{"a":1.0}`), 0},
		{"1e0 for 1 in a list", widgets, `"spec":[{"a":[1]}]`, s.replace("", "", "spec", `[{"a":[1e0]}]`), 0},
		{"1.5 for 1", widgets, `"spec":{"a":1}`, s.replace("", "", "spec", `{"a":1.5}`), 1},
		{"a large number", widgets, `"spec":9007199254740993`, s.replace("", "", "spec", `9007199254740992`), 1},
		{"another order", widgets, `"spec":{"a":1,"b":2}`, s.replace("", "", "spec", `{"b":2,"a":1}`), 0},
		{"nothing in it, labels changed", widgets, `"data":1`, s.merge("", label), 1},
		{"nothing in it, as before", widgets, `"data":1`, s.merge("", `{"data":1}`), 0},
		{"nothing in it, null for absent", widgets, `"data":1`, s.replace("", "", "more", `null`), 0},
		{"nothing in it, a field gone", widgets, `"data":1,"more":2`, s.merge("", `{"more":null}`), 1},
		{"nothing in it, many fields", gadgets, members(200), s.merge("", `{"data":2}`), 1},
		{"dry run", widgets, `"spec":{"a":1}`, s.mergeDry(`{"spec":{"a":2}}`), 0},
		{"dry run of a delete", widgets, `"spec":1`, s.remove("?dryRun=All"), 0},
		{"deleted", widgets, `"spec":1`, s.remove(""), 1},
		{"deleted, held", widgets, held, s.remove(""), 1},
		{"held twice, one gone", widgets, heldTwice, s.merge("", `{"metadata":{"finalizers":["a.example.com/b"]}}`), 0},
		{"the last finalizer gone", widgets, held, s.merge("", `{"metadata":{"finalizers":null}}`), 1},
		{
			"deleted, then the last finalizer gone", widgets, held,
			both(s.remove(""), s.merge("", `{"metadata":{"finalizers":[]}}`)), 2,
		},
		{"deleted twice while held", gadgets, held, both(s.remove(""), s.remove("")), 2},
		{"status changed", widgets, `"spec":1`, s.merge("status", `{"status":{"a":1}}`), 1},
		{"status as before", widgets, `"spec":1`, both(s.merge("status", `{"status":{"a":1}}`),
			s.replace("status", "", "status", `{"a":1.0}`)), 1},
		{"status, but only labels", widgets, `"spec":1`, s.merge("status", `{"metadata":{"labels":{"a":"b"}}}`), 0},
		{"spec through the status", widgets, `"spec":1`, s.merge("status", `{"spec":2}`), 0},
		{"dry run of a status", widgets, `"spec":1`, s.replace("status", "?dryRun=All", "status", `{"a":1}`), 0},
		{"status without a subresource", gadgets, `"spec":1`, s.merge("", `{"status":{"a":1}}`), 0},
		{"status without a subresource and without spec", gadgets, `"data":1`, s.merge("", `{"status":{"a":1}}`), 1},
		{"a ConfigMap", configMaps, `"data":{"a":"b"}`, s.merge("", `{"data":{"a":"c"}}`), 1},
		{"a ConfigMap as before", configMaps, `"data":{"a":"b"}`, s.merge("", `{"data":{"a":"b"}}`), 0},
		{
			"annotation of a ConfigMap", configMaps, `"data":{"a":"b"}`,
			s.merge("", `{"metadata":{"annotations":{"a":"c"}}}`), 1,
		},
		{"data of a ConfigMap for none", configMaps, `"immutable":false`, s.merge("", `{"data":{"a":"c"}}`), 1},
		{"a ConfigMap as before, applied", configMaps, `"data":{"a":"b"}`, s.apply(`"data":{"a":"b"}`), 0},
		{"a large ConfigMap", configMaps, large, s.merge("", `{"data":{"b":"c"}}`), 1},
		{"a large ConfigMap as before", configMaps, large, s.merge("", `{"metadata":{}}`), 0},
		{"a large spec changed at its end", widgets, `"spec":{"a":"` + big + `"}`, s.merge("", `{"spec":{"b":1}}`), 1},
		{"a large list changed at its end", widgets, `"spec":` + zeros, s.replace("", "", "spec", one), 1},
		{"a large list as before", widgets, `"spec":` + zeros, s.merge("", note), 0},
		{"a large list instead of spec", gadgets, `"data":` + zeros, s.replace("", "", "data", one), 1},
		{
			"many in spec, one of them changed", widgets, `"spec":{` + members(2000) + `}`,
			s.merge("", `{"spec":{"m1999":"x"}}`), 1,
		},
		{"many in spec as before", widgets, `"spec":{` + members(2000) + `}`, s.merge("", note), 0},
		{"many fields beside spec", gadgets, `"spec":1,` + members(200), s.merge("", `{"data":2}`), 0},
		{"a deep spec", widgets, `"spec":` + deep(500, "1"), s.replace("", "", "spec", deep(500, "2")), 1},
		{"a deep spec as before", widgets, `"spec":` + deep(500, "1"), s.replace("", "", "spec", deep(500, "1.0")), 0},
		{"a Deployment", deployments, deployment, s.merge("", `{"spec":{"replicas":3}}`), 1},
		{"a default of a Deployment", deployments, deployment, s.merge("", `{"spec":{"replicas":1}}`), 0},
		{"annotation of a Deployment", deployments, deployment, s.merge("", note), 0},
		{"status of a Deployment", deployments, deployment, s.merge("status", `{"status":{"replicas":3}}`), 1},
		{"status of a Deployment as before", deployments, deployment, s.merge("status", `{"status":{}}`), 0},
	}

	s.taken()
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s.t = t
			defer func() { s.t = t }()

			name := fmt.Sprintf("object-%d", i)
			s.create(tt.kind, name, tt.object)
			if selected, _ := s.check(); selected == 0 {
				t.Fatal("its creation was not selected")
			}

			if status := tt.write(tt.kind, name); status != http.StatusOK {
				t.Fatalf("status %d", status)
			}

			selected, seen := s.check()
			// The API server may ask twice about one write, but then it does so for both.
			if (selected > 0) != (tt.want > 0) || selected < tt.want {
				t.Errorf("%d were selected, want %d", selected, tt.want)
			}

			if seen == 0 {
				t.Error("the write was not seen")
			}
		})
	}

	s.t = t
	s.checkErrors()
	s.checkKnownLimit()
}

// checkKnownLimit tests a limit that docs/maintainers/design.md describes: CEL compares an integer and a
// fraction as fractions, which have 53 bits.
func (s *scene) checkKnownLimit() {
	s.t.Helper()
	s.create(widgets, "limit", `"spec":9007199254740993`)
	s.taken()
	s.replace("", "", "spec", `9007199254740992.0`)(widgets, "limit")

	reviews := s.taken()
	if reviews[everything][admission.Accepted] == 0 || sum(reviews[selection]) != 0 {
		s.t.Errorf("%v: the known limit is gone, and should go from docs/maintainers/design.md", reviews)
	}
}

// write changes an object, and returns the status of the answer.
type write func(k kind, name string) int

// both makes one write after the other, and returns the first status that is not 200.
func both(first, second write) write {
	return func(k kind, name string) int {
		if status := first(k, name); status != http.StatusOK {
			return status
		}
		return second(k, name)
	}
}

// members returns n members of a JSON object.
func members(n int) string {
	text := make([]string, n)
	for i := range text {
		text[i] = fmt.Sprintf(`"m%d":"%d"`, i, i)
	}
	return strings.Join(text, ",")
}

// list returns a list of n numbers of which the last is given.
func list(n int, last string) string { return "[" + strings.Repeat("0,", n-1) + last + "]" }

// deep nests a value.
func deep(levels int, inner string) string {
	return strings.Repeat(`{"a":[`, levels) + inner + strings.Repeat(`]}`, levels)
}

// create makes an object of members in JSON.
func (s *scene) create(k kind, name, object string) {
	s.t.Helper()
	if object = withName(object, name); object == "" {
		s.t.Fatal("no object")
	}

	status, answer := s.do(http.MethodPost, k.path("", ""), "application/json",
		fmt.Sprintf(`{"apiVersion":%q,"kind":%q,%s}`, k.apiVersion, k.name, object))
	if status != http.StatusCreated {
		s.t.Fatalf("create: status %d: %.300s", status, answer)
	}
}

func withName(object, name string) string {
	if rest, ok := strings.CutPrefix(object, `"metadata":{`); ok {
		return fmt.Sprintf(`"metadata":{"name":%q,%s`, name, rest)
	}
	return fmt.Sprintf(`"metadata":{"name":%q},%s`, name, object)
}

func (s *scene) merge(subresource, body string) write {
	return func(k kind, name string) int { return s.patch(k, name, subresource, body) }
}

func (s *scene) mergeDry(body string) write {
	return func(k kind, name string) int { return s.patch(k, name+"?dryRun=All", "", body) }
}

func (s *scene) apply(object string) write {
	return func(k kind, name string) int {
		path := k.path(name, "") + "?fieldManager=test&force=true"
		text := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,%s}`, k.apiVersion, k.name, withName(object, name))
		status, _ := s.do(http.MethodPatch, path, "application/apply-patch+yaml", text)
		return status
	}
}

func (s *scene) replace(subresource, query, field, raw string) write {
	return func(k kind, name string) int {
		return s.put(k, name, subresource, query, map[string]string{field: raw})
	}
}

func (s *scene) remove(query string) write {
	return func(k kind, name string) int {
		status, _ := s.do(http.MethodDelete, k.path(name, "")+query, "application/json", "")
		if status == http.StatusAccepted {
			return http.StatusOK // A finalizer holds it.
		}
		return status
	}
}
