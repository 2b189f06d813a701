package subresources

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// kind is a kind of objects that the equivalence test writes.
type kind struct {
	gvr              schema.GroupVersionResource
	apiVersion, name string
}

var (
	samples     = kind{admissionResource("example.com", "samples"), "example.com/v1", "Sample"}
	things      = kind{admissionResource("example.com", "things"), "example.com/v1", "Thing"} // without subresources
	configMaps  = kind{admissionResource("", "configmaps"), "v1", "ConfigMap"}
	deployments = kind{admissionResource("apps", "deployments"), "apps/v1", "Deployment"}
)

// path is where objects of the kind are.
func (k kind) path(name, subresource string) string {
	path := namespaced(k.gvr.Group, k.gvr.Resource, name)
	if k.gvr.Group == "" {
		path = ofCore(k.gvr.Resource, name)
	}
	if subresource != "" {
		path += "/" + subresource
	}
	return path
}

// watchesOf are watches of both fields of all kinds.
func watchesOf(manager core.Manager) (all []watch.Watch) {
	for _, k := range []kind{samples, things, configMaps, deployments} {
		for _, field := range []core.Field{core.FieldSpec, core.FieldStatus} {
			name := types.NamespacedName{Namespace: "default", Name: k.gvr.Resource + "-" + string(field)}
			all = append(all, watch.Watch{Name: name, Manager: manager, Resource: k.gvr, Field: field})
		}
	}
	return all
}

// compare compares the writes since the last call: the filter, asked about all of them, must select
// those for which the conditions called the webhook. It returns how many were selected, and how
// many there were.
func (s *scene) compare() (accepted, seen int) {
	s.t.Helper()
	events, called := s.taken()
	if len(events[everything]) != called[selected] {
		s.t.Errorf("the filter lets pass %q, and the conditions %d", events[everything], called[selected])
	}
	if len(events[selected]) != called[selected] {
		s.t.Errorf("the conditions select %d writes, and the filter %q of them", called[selected], events[selected])
	}
	return len(events[everything]), called[everything]
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
	failures := s.conditionErrors()
	defer func() { // Other tests count the deletions of whole collections.
		s.do(http.MethodDelete, configMaps.path("", "")+"?fieldSelector=metadata.name!=kube-root-ca.crt", plainJSON, "")
	}()
	s.register(everything, watchesOf(everything), admission.ConfigurationOptions{NoMatchConditions: true})
	s.register(selected, watchesOf(selected), admission.ConfigurationOptions{})
	big := strings.Repeat("x", mib)
	large := `"data":{"a":"` + big[:mib-100] + `"}`
	zeros, one := list(mib/2, "0"), list(mib/2, "1")
	// Each write is to an object of its own, made of the first text. Want is how many calls matter.
	tests := []struct {
		name   string
		kind   kind
		object string
		write  change
		want   int
	}{
		{"spec changed", samples, `"spec":{"a":1}`, merge("", `{"spec":{"a":2}}`), 1},
		{"spec as before", samples, `"spec":{"a":1}`, merge("", `{"spec":{"a":1}}`), 0},
		{"labels added", samples, `"spec":1`, merge("", label), 1},
		{"labels changed", samples, labelled, merge("", `{"metadata":{"labels":{"a":"c"}}}`), 1},
		{"labels removed", samples, labelled, merge("", `{"metadata":{"labels":null}}`), 1},
		{"labels as before", samples, labelled, merge("", label), 0},
		{"labels of a Deployment", deployments, deployment, merge("", label), 1},
		{"owner added", samples, `"spec":1`, merge("", owner), 1},
		{"owner added to other annotations", samples, noted, merge("", owner), 1},
		{"empty owner added", samples, noted, merge("", emptyOwner), 1},
		{"owner changed", samples, owned, merge("", otherOwner), 1},
		{"owner removed", samples, owned, merge("", `{"metadata":{"annotations":null}}`), 1},
		{"owner as before", samples, owned, merge("", note), 0},
		{"annotation changed", samples, `"spec":1`, merge("", note), 0},
		{"another field changed", samples, `"spec":{"a":1},"data":1`, merge("", `{"data":2}`), 0},
		{"status through the resource", samples, `"spec":{"a":1}`, merge("", `{"status":{"a":2}}`), 0},
		{"spec added", samples, `"data":1`, merge("", `{"spec":{"a":2}}`), 1},
		{"empty spec added", samples, `"data":1`, merge("", `{"spec":{}}`), 1},
		{"spec removed", samples, `"spec":{"a":1}`, merge("", `{"spec":null}`), 1},
		{"spec null for absent", samples, `"data":1`, put("", "", "spec", `null`), 0},
		{"spec absent for null", samples, `"spec":null,"data":1`, put("", "", "spec", ``), 0},
		{"spec for null", samples, `"spec":null`, put("", "", "spec", `false`), 1},
		{"spec that is a list", samples, `"spec":[1,2]`, merge("", `{"spec":[2,1]}`), 1},
		{"spec of another type", samples, `"spec":"1"`, merge("", `{"spec":1}`), 1},
		{"null in spec for absent", samples, `"spec":{"a":1}`, put("", "", "spec", `{"a":1,"b":null}`), 1},
		{"1.0 for 1", samples, `"spec":{"a":1}`, put("", "", "spec", `{"a":1.0}`), 0},
		{"1e0 for 1 in a list", samples, `"spec":[{"a":[1]}]`, put("", "", "spec", `[{"a":[1e0]}]`), 0},
		{"1.5 for 1", samples, `"spec":{"a":1}`, put("", "", "spec", `{"a":1.5}`), 1},
		{"a large number", samples, `"spec":9007199254740993`, put("", "", "spec", `9007199254740992`), 1},
		{"another order", samples, `"spec":{"a":1,"b":2}`, put("", "", "spec", `{"b":2,"a":1}`), 0},
		{"nothing in it, labels changed", samples, `"data":1`, merge("", label), 1},
		{"nothing in it, as before", samples, `"data":1`, merge("", `{"data":1}`), 0},
		{"nothing in it, null for absent", samples, `"data":1`, put("", "", "more", `null`), 0},
		{"nothing in it, a field gone", samples, `"data":1,"more":2`, merge("", `{"more":null}`), 1},
		{"nothing in it, many fields", things, members(200), merge("", `{"data":2}`), 1},
		{"dry run", samples, `"spec":{"a":1}`, mergeDry(`{"spec":{"a":2}}`), 0},
		{"dry run of a delete", samples, `"spec":1`, removeOf("?dryRun=All"), 0},
		{"deleted", samples, `"spec":1`, removeOf(""), 1},
		{"deleted, held", samples, held, removeOf(""), 1},
		{"held twice, one gone", samples, heldTwice, merge("", `{"metadata":{"finalizers":["a.example.com/b"]}}`), 0},
		{"the last finalizer gone", samples, held, merge("", `{"metadata":{"finalizers":null}}`), 1},
		{
			"deleted, then the last finalizer gone", samples, held,
			both(removeOf(""), merge("", `{"metadata":{"finalizers":[]}}`)), 2,
		},
		{"deleted twice while held", things, held, both(removeOf(""), removeOf("")), 2},
		{"status changed", samples, `"spec":1`, merge("status", `{"status":{"a":1}}`), 1},
		{"status as before", samples, `"spec":1`, both(merge("status", `{"status":{"a":1}}`),
			put("status", "", "status", `{"a":1.0}`)), 1},
		{"status, but only labels", samples, `"spec":1`, merge("status", `{"metadata":{"labels":{"a":"b"}}}`), 0},
		{"spec through the status", samples, `"spec":1`, merge("status", `{"spec":2}`), 0},
		{"dry run of a status", samples, `"spec":1`, put("status", "?dryRun=All", "status", `{"a":1}`), 0},
		{"status without a subresource", things, `"spec":1`, merge("", `{"status":{"a":1}}`), 0},
		{"status without a subresource and without spec", things, `"data":1`, merge("", `{"status":{"a":1}}`), 1},
		{"a ConfigMap", configMaps, `"data":{"a":"b"}`, merge("", `{"data":{"a":"c"}}`), 1},
		{"a ConfigMap as before", configMaps, `"data":{"a":"b"}`, merge("", `{"data":{"a":"b"}}`), 0},
		{
			"annotation of a ConfigMap", configMaps, `"data":{"a":"b"}`,
			merge("", `{"metadata":{"annotations":{"a":"c"}}}`), 1,
		},
		{"data of a ConfigMap for none", configMaps, `"immutable":false`, merge("", `{"data":{"a":"c"}}`), 1},
		{"a ConfigMap as before, applied", configMaps, `"data":{"a":"b"}`, apply(`"data":{"a":"b"}`), 0},
		{"a large ConfigMap", configMaps, large, merge("", `{"data":{"b":"c"}}`), 1},
		{"a large ConfigMap as before", configMaps, large, merge("", `{"metadata":{}}`), 0},
		{"a large spec changed at its end", samples, `"spec":{"a":"` + big + `"}`, merge("", `{"spec":{"b":1}}`), 1},
		{"a large list changed at its end", samples, `"spec":` + zeros, put("", "", "spec", one), 1},
		{"a large list as before", samples, `"spec":` + zeros, merge("", note), 0},
		{"a large list instead of spec", things, `"data":` + zeros, put("", "", "data", one), 1},
		{
			"many in spec, one of them changed", samples, `"spec":{` + members(2000) + `}`,
			merge("", `{"spec":{"m1999":"x"}}`), 1,
		},
		{"many in spec as before", samples, `"spec":{` + members(2000) + `}`, merge("", note), 0},
		{"many fields beside spec", things, `"spec":1,` + members(200), merge("", `{"data":2}`), 0},
		{"a deep spec", samples, `"spec":` + deep(500, "1"), put("", "", "spec", deep(500, "2")), 1},
		{"a deep spec as before", samples, `"spec":` + deep(500, "1"), put("", "", "spec", deep(500, "1.0")), 0},
		{"a Deployment", deployments, deployment, merge("", `{"spec":{"replicas":3}}`), 1},
		{"a default of a Deployment", deployments, deployment, merge("", `{"spec":{"replicas":1}}`), 0},
		{"annotation of a Deployment", deployments, deployment, merge("", note), 0},
		{"status of a Deployment", deployments, deployment, merge("status", `{"status":{"replicas":3}}`), 1},
		{"status of a Deployment as before", deployments, deployment, merge("status", `{"status":{}}`), 0},
	}
	s.taken()
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s.t = t
			defer func() { s.t = t }()
			name := fmt.Sprintf("object-%d", i)
			s.createOf(tt.kind, name, tt.object)
			if accepted, _ := s.compare(); accepted == 0 {
				t.Fatal("its creation was not selected")
			}
			tt.write(tt.kind, name)(s)
			accepted, seen := s.compare()
			// The API server may ask twice about one write, but then it does so for both.
			if (accepted > 0) != (tt.want > 0) || accepted < tt.want {
				t.Errorf("%d were selected, want %d", accepted, tt.want)
			}
			if seen == 0 {
				t.Error("the write was not seen")
			}
		})
	}
	s.t = t
	if n := s.conditionErrors() - failures; n != 0 {
		t.Errorf("%v conditions could not be evaluated, want none: such a write would be lost", n)
	}
	s.checkKnownLimit()
}

// checkKnownLimit tests a limit that docs/maintainers/design.md describes: CEL compares an integer and a
// fraction as fractions, which have 53 bits.
func (s *scene) checkKnownLimit() {
	s.t.Helper()
	s.createOf(samples, "limit", `"spec":9007199254740993`)
	s.taken()
	put("", "", "spec", `9007199254740992.0`)(samples, "limit")(s)
	events, called := s.taken()
	if len(events[everything]) == 0 || called[selected] != 0 {
		s.t.Errorf("%q, %v: the known limit is gone, and should go from the documents", events, called)
	}
}

// change is a write to an object.
type change func(k kind, name string) write

// both makes one write after the other.
func both(first, second change) change {
	return func(k kind, name string) write { return all(first(k, name), second(k, name)) }
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

// createOf makes an object of members in JSON.
func (s *scene) createOf(k kind, name, object string) {
	s.t.Helper()
	create(k.path("", ""), k.object(name, object))(s)
}

// object returns an object of members in JSON.
func (k kind) object(name, members string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,%s}`, k.apiVersion, k.name, withName(members, name))
}

func withName(object, name string) string {
	if rest, ok := strings.CutPrefix(object, `"metadata":{`); ok {
		return fmt.Sprintf(`"metadata":{"name":%q,%s`, name, rest)
	}
	return fmt.Sprintf(`"metadata":{"name":%q},%s`, name, object)
}

func merge(subresource, body string) change {
	return func(k kind, name string) write { return patch(k.path(name, subresource), body) }
}

func mergeDry(body string) change {
	return func(k kind, name string) write { return patch(k.path(name, "")+"?dryRun=All", body) }
}

func apply(object string) change {
	return func(k kind, name string) write {
		return request(http.MethodPatch, k.path(name, "")+"?fieldManager=test&force=true", applyPatch, k.object(name, object))
	}
}

func removeOf(query string) change {
	return func(k kind, name string) write { return remove(k.path(name, "") + query) }
}

// put replaces a top-level field of an object by raw JSON, as it stands: the order and the notation
// stay. An empty text removes it.
func put(subresource, query, field, raw string) change {
	return func(k kind, name string) write {
		return func(s *scene) {
			s.t.Helper()
			_, current := s.do(http.MethodGet, k.path(name, ""), plainJSON, "")
			var object map[string]json.RawMessage
			if err := json.Unmarshal(current, &object); err != nil {
				s.t.Fatal(err)
			}
			if object[field] = json.RawMessage(raw); raw == "" {
				delete(object, field)
			}
			var text bytes.Buffer // json.Marshal would change the order of members within a field.
			for field, raw := range object {
				fmt.Fprintf(&text, ",%q:%s", field, raw)
			}
			s.must(http.MethodPut, k.path(name, subresource)+query, plainJSON, "{"+text.String()[1:]+"}")
		}
	}
}
