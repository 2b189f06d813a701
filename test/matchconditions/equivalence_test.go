package matchconditions

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
)

// check compares, for the writes since the last check, what the filter let pass when it was asked about everything with what it was
// asked about at all when the conditions chose. It returns what was selected, and what was seen.
func (s *scene) check() (selected, seen int) {
	s.t.Helper()
	reviews := s.taken()
	all, some := reviews[everything], reviews[selection]
	if all[admission.Accepted] != sum(some) {
		s.t.Errorf("the filter lets pass %d of %v, and the conditions %v", all[admission.Accepted], all, some)
	}

	if sum(some) != some[admission.Accepted] {
		s.t.Errorf("the conditions let pass what the filter does not: %v", some)
	}
	return all[admission.Accepted], sum(all)
}

const (
	mib = 1 << 20

	deployment = `"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},` +
		`"spec":{"containers":[{"name":"a","image":"a"}]}}}`
)

func TestConditionsSelectWhatTheFilterDoes(t *testing.T) {
	s := newScene(t)
	s.watch(everything, false)
	s.watch(selection, true)

	big := strings.Repeat("x", mib)

	// Each write is to an object of its own, made of the first text; it is a merge patch unless it is said otherwise.
	tests := []struct {
		name     string
		kind     kind
		object   string
		write    func(name string) int
		want     int // calls that matter
		unseen   bool
		statuses int // of the write; 200 by default
	}{
		{name: "spec changed", kind: widgets, object: `"spec":{"a":1}`, write: s.merge(widgets, "", `{"spec":{"a":2}}`), want: 1},
		{name: "spec as before", kind: widgets, object: `"spec":{"a":1}`, write: s.merge(widgets, "", `{"spec":{"a":1}}`)},
		{name: "labels changed", kind: widgets, object: `"spec":{"a":1}`, write: s.merge(widgets, "", `{"metadata":{"labels":{"a":"b"}}}`)},
		{name: "another field changed", kind: widgets, object: `"spec":{"a":1},"data":1`, write: s.merge(widgets, "", `{"data":2}`)},
		{name: "status through the resource", kind: widgets, object: `"spec":{"a":1}`, write: s.merge(widgets, "", `{"status":{"a":2}}`)},
		{name: "spec added", kind: widgets, object: `"data":1`, write: s.merge(widgets, "", `{"spec":{"a":2}}`), want: 1},
		{name: "empty spec added", kind: widgets, object: `"data":1`, write: s.merge(widgets, "", `{"spec":{}}`), want: 1},
		{name: "spec removed", kind: widgets, object: `"spec":{"a":1}`, write: s.merge(widgets, "", `{"spec":null}`), want: 1},
		{name: "spec null for absent", kind: widgets, object: `"data":1`, write: s.replace(widgets, "", "", "spec", `null`)},
		{name: "spec absent for null", kind: widgets, object: `"spec":null,"data":1`, write: s.replace(widgets, "", "", "spec", ``)},
		{name: "spec for null", kind: widgets, object: `"spec":null`, write: s.replace(widgets, "", "", "spec", `false`), want: 1},
		{name: "spec that is a list", kind: widgets, object: `"spec":[1,2]`, write: s.merge(widgets, "", `{"spec":[2,1]}`), want: 1},
		{name: "spec of another type", kind: widgets, object: `"spec":"1"`, write: s.merge(widgets, "", `{"spec":1}`), want: 1},
		{name: "null in spec for absent", kind: widgets, object: `"spec":{"a":1}`, write: s.replace(widgets, "", "", "spec", `{"a":1,"b":null}`), want: 1},
		{name: "1.0 for 1", kind: widgets, object: `"spec":{"a":1}`, write: s.replace(widgets, "", "", "spec", `{"a":1.0}`)},
		{name: "1e0 for 1 in a list", kind: widgets, object: `"spec":[{"a":[1]}]`, write: s.replace(widgets, "", "", "spec", `[{"a":[1e0]}]`)},
		{name: "1.5 for 1", kind: widgets, object: `"spec":{"a":1}`, write: s.replace(widgets, "", "", "spec", `{"a":1.5}`), want: 1},
		{name: "a large number", kind: widgets, object: `"spec":9007199254740993`, write: s.replace(widgets, "", "", "spec", `9007199254740992`), want: 1},
		{name: "another order", kind: widgets, object: `"spec":{"a":1,"b":2}`, write: s.replace(widgets, "", "", "spec", `{"b":2,"a":1}`)},
		{name: "nothing in it, labels changed", kind: widgets, object: `"data":1`, write: s.merge(widgets, "", `{"metadata":{"labels":{"a":"b"}}}`), want: 1},
		{name: "nothing in it, as before", kind: widgets, object: `"data":1`, write: s.merge(widgets, "", `{"data":1}`)},
		{name: "nothing in it, null for absent", kind: widgets, object: `"data":1`, write: s.replace(widgets, "", "", "more", `null`)},
		{name: "nothing in it, a field gone", kind: widgets, object: `"data":1,"more":2`, write: s.merge(widgets, "", `{"more":null}`), want: 1},
		{name: "nothing in it, many fields", kind: gadgets, object: members(500), write: s.merge(gadgets, "", `{"data":2}`), want: 1},
		{name: "dry run", kind: widgets, object: `"spec":{"a":1}`, write: s.mergeDry(widgets, `{"spec":{"a":2}}`)},
		{name: "dry run of a delete", kind: widgets, object: `"spec":1`, write: s.remove(widgets, "?dryRun=All")},
		{name: "deleted", kind: widgets, object: `"spec":1`, write: s.remove(widgets, ""), want: 1},
		{name: "deleted, held", kind: widgets, object: `"metadata":{"finalizers":["a.example.com/b"]},"spec":1`, write: s.remove(widgets, ""), want: 1},
		{
			name: "held twice, one gone", kind: widgets, object: `"metadata":{"finalizers":["a.example.com/b","a.example.com/c"]},"spec":1`,
			write: s.merge(widgets, "", `{"metadata":{"finalizers":["a.example.com/b"]}}`),
		},
		{
			name: "the last finalizer gone", kind: widgets, object: `"metadata":{"finalizers":["a.example.com/b"]},"spec":1`,
			write: s.merge(widgets, "", `{"metadata":{"finalizers":null}}`), want: 1,
		},
		{
			name: "deleted, then the last finalizer gone", kind: widgets, object: `"metadata":{"finalizers":["a.example.com/b"]},"spec":1`,
			write: func(name string) int {
				return cmp.Or(bad(s.remove(widgets, "")(name)), s.merge(widgets, "", `{"metadata":{"finalizers":[]}}`)(name))
			}, want: 2,
		},
		{
			name: "deleted twice while held", kind: gadgets, object: `"metadata":{"finalizers":["a.example.com/b"]},"spec":1`,
			write: func(name string) int {
				return cmp.Or(bad(s.remove(gadgets, "")(name)), s.remove(gadgets, "")(name))
			}, want: 2,
		},
		{name: "status changed", kind: widgets, object: `"spec":1`, write: s.merge(widgets, "status", `{"status":{"a":1}}`), want: 1},
		{name: "status as before", kind: widgets, object: `"spec":1`, write: func(name string) int {
			return cmp.Or(bad(s.merge(widgets, "status", `{"status":{"a":1}}`)(name)), s.replace(widgets, "status", "", "status", `{"a":1.0}`)(name))
		}, want: 1},
		{name: "status, but only labels", kind: widgets, object: `"spec":1`, write: s.merge(widgets, "status", `{"metadata":{"labels":{"a":"b"}}}`)},
		{name: "spec through the status", kind: widgets, object: `"spec":1`, write: s.merge(widgets, "status", `{"spec":2}`)},
		{name: "dry run of a status", kind: widgets, object: `"spec":1`, write: s.replace(widgets, "status", "?dryRun=All", "status", `{"a":1}`)},
		{name: "status without a subresource", kind: gadgets, object: `"spec":1`, write: s.merge(gadgets, "", `{"status":{"a":1}}`)},
		{name: "status without a subresource and without spec", kind: gadgets, object: `"data":1`, write: s.merge(gadgets, "", `{"status":{"a":1}}`), want: 1},
		{name: "no such subresource", kind: gadgets, object: `"spec":1`, write: s.merge(gadgets, "status", `{"status":1}`), unseen: true, statuses: http.StatusNotFound},
		{name: "a ConfigMap", kind: configMaps, object: `"data":{"a":"b"}`, write: s.merge(configMaps, "", `{"data":{"a":"c"}}`), want: 1},
		{name: "a ConfigMap as before", kind: configMaps, object: `"data":{"a":"b"}`, write: s.merge(configMaps, "", `{"data":{"a":"b"}}`)},
		{name: "annotation of a ConfigMap", kind: configMaps, object: `"data":{"a":"b"}`, write: s.merge(configMaps, "", `{"metadata":{"annotations":{"a":"c"}}}`), want: 1},
		{name: "data of a ConfigMap for none", kind: configMaps, object: `"immutable":false`, write: s.merge(configMaps, "", `{"data":{"a":"c"}}`), want: 1},
		{name: "a ConfigMap as before, applied", kind: configMaps, object: `"data":{"a":"b"}`, write: s.apply(configMaps, `"data":{"a":"b"}`)},
		{name: "a large ConfigMap", kind: configMaps, object: `"data":{"a":"` + big[:mib-100] + `"}`, write: s.merge(configMaps, "", `{"data":{"b":"c"}}`), want: 1},
		{name: "a large ConfigMap as before", kind: configMaps, object: `"data":{"a":"` + big[:mib-100] + `"}`, write: s.merge(configMaps, "", `{"metadata":{}}`)},
		{name: "a large spec changed at its end", kind: widgets, object: `"spec":{"a":"` + big + `"}`, write: s.merge(widgets, "", `{"spec":{"b":1}}`), want: 1},
		{
			name: "a large list changed at its end", kind: widgets, object: `"spec":` + list(mib/2, "0"),
			write: s.replace(widgets, "", "", "spec", list(mib/2, "1")), want: 1,
		},
		{
			name: "a large list as before", kind: widgets, object: `"spec":` + list(mib/2, "0"),
			write: s.merge(widgets, "", `{"metadata":{"labels":{"a":"b"}}}`),
		},
		{
			name: "a large list instead of spec", kind: gadgets, object: `"data":` + list(mib/2, "0"),
			write: s.replace(gadgets, "", "", "data", list(mib/2, "1")), want: 1,
		},
		{
			name: "many in spec, one of them changed", kind: widgets, object: `"spec":{` + members(2000) + `}`,
			write: s.merge(widgets, "", `{"spec":{"m1999":"x"}}`), want: 1,
		},
		{
			name: "many in spec as before", kind: widgets, object: `"spec":{` + members(2000) + `}`,
			write: s.merge(widgets, "", `{"metadata":{"labels":{"a":"b"}}}`),
		},
		{name: "many fields beside spec", kind: gadgets, object: `"spec":1,` + members(2000), write: s.merge(gadgets, "", `{"data":2}`)},
		{name: "a deep spec", kind: widgets, object: `"spec":` + deep(500, "1"), write: s.replace(widgets, "", "", "spec", deep(500, "2")), want: 1},
		{name: "a deep spec as before", kind: widgets, object: `"spec":` + deep(500, "1"), write: s.replace(widgets, "", "", "spec", deep(500, "1.0"))},
		{name: "a Deployment", kind: deployments, object: deployment, write: s.merge(deployments, "", `{"spec":{"replicas":3}}`), want: 1},
		{name: "a default of a Deployment", kind: deployments, object: deployment, write: s.merge(deployments, "", `{"spec":{"replicas":1}}`)},
		{name: "annotation of a Deployment", kind: deployments, object: deployment, write: s.merge(deployments, "", `{"metadata":{"annotations":{"a":"b"}}}`)},
		{name: "status of a Deployment", kind: deployments, object: deployment, write: s.merge(deployments, "status", `{"status":{"replicas":3}}`), want: 1},
		{name: "status of a Deployment as before", kind: deployments, object: deployment, write: s.merge(deployments, "status", `{"status":{}}`)},
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

			if status := tt.write(name); status != cmp.Or(tt.statuses, http.StatusOK) {
				t.Fatalf("status %d", status)
			}

			selected, seen := s.check()
			// The API server may ask twice about one write, but then it does so for both.
			if (selected > 0) != (tt.want > 0) || selected < tt.want {
				t.Errorf("%d were selected, want %d", selected, tt.want)
			}

			if (seen == 0) != tt.unseen {
				t.Errorf("%d were seen", seen)
			}
		})
	}

	s.t = t
	s.checkErrors()
	s.checkKnownLimit()
}

// checkKnownLimit pins what docs/design.md owns up to: CEL compares an integer and a fraction as fractions, which have 53 bits.
func (s *scene) checkKnownLimit() {
	s.t.Helper()
	s.create(widgets, "limit", `"spec":9007199254740993`)
	s.taken()
	s.replace(widgets, "", "", "spec", `9007199254740992.0`)("limit")

	reviews := s.taken()
	if reviews[everything][admission.Accepted] == 0 || sum(reviews[selection]) != 0 {
		s.t.Errorf("%v: the known limit is gone, and should go from docs/design.md", reviews)
	}
}

// bad returns a status that is not 200, and 0 for 200.
func bad(status int) int {
	if status == http.StatusOK {
		return 0
	}
	return status
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

func (s *scene) merge(k kind, subresource, body string) func(string) int {
	return func(name string) int { return s.patch(k, name, subresource, body) }
}

func (s *scene) mergeDry(k kind, body string) func(string) int {
	return func(name string) int { return s.patch(k, name+"?dryRun=All", "", body) }
}

func (s *scene) apply(k kind, object string) func(string) int {
	return func(name string) int {
		status, _ := s.do(http.MethodPatch, k.path(name, "")+"?fieldManager=test&force=true", "application/apply-patch+yaml",
			fmt.Sprintf(`{"apiVersion":%q,"kind":%q,%s}`, k.apiVersion, k.name, withName(object, name)))
		return status
	}
}

func (s *scene) replace(k kind, subresource, query, field, raw string) func(string) int {
	return func(name string) int { return s.put(k, name, subresource, query, map[string]string{field: raw}) }
}

func (s *scene) remove(k kind, query string) func(string) int {
	return func(name string) int {
		status, _ := s.do(http.MethodDelete, k.path(name, "")+query, "application/json", "")
		if status == http.StatusAccepted {
			return http.StatusOK // Held by a finalizer.
		}
		return status
	}
}
