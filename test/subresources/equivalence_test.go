package subresources

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

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
	defer s.end()
	defer removeAll(s, configMaps, "") // Other tests count the deletions of whole collections.
	s.register(everything, watchesOf(everything), admission.ConfigurationOptions{NoMatchConditions: true})
	s.register(selected, watchesOf(selected), admission.ConfigurationOptions{})
	big := strings.Repeat("x", mib)
	large := `"data":{"a":"` + big[:mib-100] + `"}`
	zeros := list(mib/2, "0")
	one := list(mib/2, "1")
	// Each write is to an object of its own, made of the first text. Want is how many calls matter.
	tests := []struct {
		name   string
		kind   kind
		object string
		write  write
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
		{"spec null for absent", samples, `"data":1`, put("", "spec", `null`), 0},
		{"spec absent for null", samples, `"spec":null,"data":1`, put("", "spec", ``), 0},
		{"spec for null", samples, `"spec":null`, put("", "spec", `false`), 1},
		{"spec that is a list", samples, `"spec":[1,2]`, merge("", `{"spec":[2,1]}`), 1},
		{"spec of another type", samples, `"spec":"1"`, merge("", `{"spec":1}`), 1},
		{"null in spec for absent", samples, `"spec":{"a":1}`, put("", "spec", `{"a":1,"b":null}`), 1},
		{"1.0 for 1", samples, `"spec":{"a":1}`, put("", "spec", `{"a":1.0}`), 0},
		{"1e0 for 1 in a list", samples, `"spec":[{"a":[1]}]`, put("", "spec", `[{"a":[1e0]}]`), 0},
		{"1.5 for 1", samples, `"spec":{"a":1}`, put("", "spec", `{"a":1.5}`), 1},
		{"a large number", samples, `"spec":9007199254740993`, put("", "spec", `9007199254740992`), 1},
		{"another order", samples, `"spec":{"a":1,"b":2}`, put("", "spec", `{"b":2,"a":1}`), 0},
		{"nothing in it, labels changed", samples, `"data":1`, merge("", label), 1},
		{"nothing in it, as before", samples, `"data":1`, merge("", `{"data":1}`), 0},
		{"nothing in it, null for absent", samples, `"data":1`, put("", "more", `null`), 0},
		{"nothing in it, a field gone", samples, `"data":1,"more":2`, merge("", `{"more":null}`), 1},
		{"nothing in it, many fields", things, members(200), merge("", `{"data":2}`), 1},
		{"dry run", samples, `"spec":{"a":1}`, merge("?dryRun=All", `{"spec":{"a":2}}`), 0},
		{"dry run of a delete", samples, `"spec":1`, remove("?dryRun=All"), 0},
		{"deleted", samples, `"spec":1`, remove(""), 1},
		{"deleted, held", samples, held, remove(""), 1},
		{"held twice, one gone", samples, heldTwice, merge("", `{"metadata":{"finalizers":["a.example.com/b"]}}`), 0},
		{"the last finalizer gone", samples, held, merge("", `{"metadata":{"finalizers":null}}`), 1},
		{"deleted, then the last finalizer gone", samples, held, all(remove(""), merge("", `{"metadata":{"finalizers":[]}}`)), 2},
		{"deleted twice while held", things, held, all(slices.Repeat([]write{remove("")}, 2)...), 2},
		{"status changed", samples, `"spec":1`, merge("/status", `{"status":{"a":1}}`), 1},
		{"status as before", samples, `"spec":1`, all(merge("/status", `{"status":{"a":1}}`),
			put("/status", "status", `{"a":1.0}`)), 1},
		{"status, but only labels", samples, `"spec":1`, merge("/status", `{"metadata":{"labels":{"a":"b"}}}`), 0},
		{"spec through the status", samples, `"spec":1`, merge("/status", `{"spec":2}`), 0},
		{"dry run of a status", samples, `"spec":1`, put("/status?dryRun=All", "status", `{"a":1}`), 0},
		{"status without a subresource", things, `"spec":1`, merge("", `{"status":{"a":1}}`), 0},
		{"status without a subresource and without spec", things, `"data":1`, merge("", `{"status":{"a":1}}`), 1},
		{"a ConfigMap", configMaps, `"data":{"a":"b"}`, merge("", `{"data":{"a":"c"}}`), 1},
		{"a ConfigMap as before", configMaps, `"data":{"a":"b"}`, merge("", `{"data":{"a":"b"}}`), 0},
		{"annotation of a ConfigMap", configMaps, `"data":{"a":"b"}`, merge("", `{"metadata":{"annotations":{"a":"c"}}}`), 1},
		{"data of a ConfigMap for none", configMaps, `"immutable":false`, merge("", `{"data":{"a":"c"}}`), 1},
		{"a ConfigMap as before, applied", configMaps, `"data":{"a":"b"}`, apply("?fieldManager=test&force=true", `"data":{"a":"b"}`), 0},
		{"a large ConfigMap", configMaps, large, merge("", `{"data":{"b":"c"}}`), 1},
		{"a large ConfigMap as before", configMaps, large, merge("", `{"metadata":{}}`), 0},
		{"a large spec changed at its end", samples, `"spec":{"a":"` + big + `"}`, merge("", `{"spec":{"b":1}}`), 1},
		{"a large list changed at its end", samples, `"spec":` + zeros, put("", "spec", one), 1},
		{"a large list as before", samples, `"spec":` + zeros, merge("", note), 0},
		{"a large list instead of spec", things, `"data":` + zeros, put("", "data", one), 1},
		{"many in spec, one of them changed", samples, `"spec":{` + members(2000) + `}`, merge("", `{"spec":{"m1999":"x"}}`), 1},
		{"many in spec as before", samples, `"spec":{` + members(2000) + `}`, merge("", note), 0},
		{"many fields beside spec", things, `"spec":1,` + members(200), merge("", `{"data":2}`), 0},
		{"a deep spec", samples, `"spec":` + deep(500, "1"), put("", "spec", deep(500, "2")), 1},
		{"a deep spec as before", samples, `"spec":` + deep(500, "1"), put("", "spec", deep(500, "1.0")), 0},
		{"a Deployment", deployments, deployment, merge("", `{"spec":{"replicas":3}}`), 1},
		{"a default of a Deployment", deployments, deployment, merge("", `{"spec":{"replicas":1}}`), 0},
		{"annotation of a Deployment", deployments, deployment, merge("", note), 0},
		{"status of a Deployment", deployments, deployment, merge("/status", `{"status":{"replicas":3}}`), 1},
		{"status of a Deployment as before", deployments, deployment, merge("/status", `{"status":{}}`), 0},
	}
	s.taken()
	for i, tt := range tests {
		s.run(tt.name, func() {
			name := fmt.Sprintf("object-%d", i)
			made(tt.object)(s, tt.kind, name)
			if accepted, _ := s.compare(); accepted == 0 {
				s.t.Fatal("its creation was not selected")
			}
			tt.write(s, tt.kind, name)
			accepted, seen := s.compare()
			// The API server may ask twice about one write, but then it does so for both.
			if (accepted > 0) != (tt.want > 0) || accepted < tt.want {
				s.t.Errorf("%d were selected, want %d", accepted, tt.want)
			}
			if seen == 0 {
				s.t.Error("the write was not seen")
			}
		})
	}
	s.checkKnownLimit()
}

// checkKnownLimit tests a limit that docs/maintainers/design.md describes: CEL compares an integer and a
// fraction as fractions, which have 53 bits.
func (s *scene) checkKnownLimit() {
	s.t.Helper()
	made(`"spec":9007199254740993`)(s, samples, "limit")
	s.taken()
	put("", "spec", `9007199254740992.0`)(s, samples, "limit")
	events, called := s.taken()
	if len(events[everything]) == 0 || called[selected] != 0 {
		s.t.Errorf("%q, %v: the known limit is gone, and should go from the documents", events, called)
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
