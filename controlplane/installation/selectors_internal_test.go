package installation

import (
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission/selector"
)

func parse(t *testing.T, text string) *metav1.LabelSelector {
	t.Helper()

	parsed, err := metav1.ParseToLabelSelector(text)
	if err != nil {
		t.Fatal(err)
	}

	return parsed
}

// The enforcer of AKS, and others like it, add requirements in any order.
func TestExclusionsBeyondOurs(t *testing.T) {
	t.Parallel()

	const refused = "refused"
	tests := map[string]struct{ ours, live, want string }{
		"nothing":                    {"a notin (x)", "a notin (x)", ""},
		"another order of values":    {"a notin (x,y),b in (u,v)", "b in (v,u),a notin (y,x)", ""},
		"twice":                      {"a notin (x,y)", "a notin (y),a notin (x,y)", ""},
		"in two parts":               {"a notin (x,y)", "a notin (y),a notin (x)", ""},
		"a value of one":             {"a=x", "a in (x)", ""},
		"a value, and that it is":    {"a=x", "a in (x),a", ""},
		"more values, all but one":   {"a=x", "a in (x,y),a notin (y)", ""},
		"the enforcer of AKS":        {"a notin (x)", "control-plane notin (true),a notin (x),k notin (aks)", "control-plane notin (true), k notin (aks)"},
		"its former form":            {"a notin (x)", "a notin (x),!control-plane", "!control-plane"},
		"more values of our label":   {"a notin (x)", "a notin (y,x)", "a notin (y)"},
		"our label must be absent":   {"a notin (x)", "!a", "!a"},
		"fewer values of our label":  {"a in (x,y)", "a in (x)", "a notin (y)"},
		"a value less, in two parts": {"a in (x,y,z)", "a in (x,y),a in (y,z)", "a notin (x,z)"},
		"a label that must exist":    {"a notin (x)", "a notin (x),b", refused},
		"only a certain label":       {"a notin (x)", "a notin (x),b in (y)", refused},
		"our label must exist":       {"a notin (x)", "a notin (x),a", refused},
		"ours is missing":            {"a notin (x),b notin (y)", "a notin (x)", refused},
		"one of our values":          {"a notin (x,y)", "a notin (x)", refused},
		"more than we select":        {"a in (x)", "a in (x,y)", refused},
		"another value":              {"a in (x)", "a in (y)", refused},
		"nothing at all":             {"a in (x)", "a in (x),a notin (x)", refused},
		"a contradiction":            {"a notin (x)", "a,!a", refused},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			more, ok := selector.ExclusionsBeyond(parse(t, test.ours), parse(t, test.live))
			var have []string
			for _, requirement := range more {
				have = append(have, selector.Text(requirement))
			}

			text := strings.Join(have, ", ")
			if !ok {
				text = refused
			}
			if text != test.want {
				t.Errorf("got %q, want %q", text, test.want)
			}
		})
	}
}

// Two selectors have the same meaning only if they select the same labels, and what ExclusionsBeyond
// returns is the whole difference. The oracle is the matcher of Kubernetes.
func TestMeaningsOfSelectors(t *testing.T) {
	t.Parallel()

	keys := []string{"a", "b"}
	values := []string{"x", "y", "z"}
	draw := rapid.Custom(func(t *rapid.T) *metav1.LabelSelector {
		s := &metav1.LabelSelector{MatchLabels: rapid.MapOfN(
			rapid.SampledFrom(keys), rapid.SampledFrom(values), 0, 1).Draw(t, "labels")}
		for range rapid.IntRange(0, 4).Draw(t, "expressions") {
			r := metav1.LabelSelectorRequirement{
				Key: rapid.SampledFrom(keys).Draw(t, "key"),
				Operator: rapid.SampledFrom([]metav1.LabelSelectorOperator{
					metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn,
					metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
				}).Draw(t, "operator"),
			}
			if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
				r.Values = rapid.SliceOfN(rapid.SampledFrom(values), 1, 3).Draw(t, "values")
			}

			s.MatchExpressions = append(s.MatchExpressions, r)
		}

		return s
	})

	var objects []labels.Set
	for _, a := range append(slices.Clone(values), "", "other") {
		for _, b := range append(slices.Clone(values), "", "other") {
			all := labels.Set{"a": a, "b": b}
			maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
			objects = append(objects, all)
		}
	}

	selected := func(t *rapid.T, s *metav1.LabelSelector) (all []bool) {
		matcher, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			t.Fatal(err)
		}

		for _, object := range objects {
			all = append(all, matcher.Matches(object))
		}

		return all
	}

	rapid.Check(t, func(t *rapid.T) {
		ours := draw.Draw(t, "ours")
		live := draw.Draw(t, "live")
		have, _ := selector.Meaning(live)
		want, _ := selector.Meaning(ours)
		if have == want && !slices.Equal(selected(t, ours), selected(t, live)) {
			t.Fatalf("the same meaning, and other objects: %v, %v", ours, live)
		}

		more, ok := selector.ExclusionsBeyond(ours, live)
		if !ok {
			return
		}
		if !slices.Equal(selected(t, selector.With(ours, more)), selected(t, live)) {
			t.Fatalf("%v with %v is not %v", ours, more, live)
		}
		if without := labels.Set(ours.MatchLabels); len(more) > 0 && len(without) == 0 && len(ours.MatchExpressions) == 0 {
			matcher, _ := metav1.LabelSelectorAsSelector(live)
			if !matcher.Matches(labels.Set{}) {
				t.Fatalf("an object without labels is excluded by %v", more)
			}
		}
	})
}
