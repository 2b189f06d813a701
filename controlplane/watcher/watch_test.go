package watcher

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/condition"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/watchtest"
)

func someWatcher(name string) v1beta2.Watcher {
	return v1beta2.Watcher{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kcp-system"},
		Spec: v1beta2.WatcherSpec{
			Manager:         "lifecycle-manager",
			ResourceToWatch: v1beta2.WatchableGVR{Group: "operator.kyma-project.io", Version: "*", Resource: "kymas"},
			LabelsToWatch:   map[string]v1beta2.LabelValue{"watched-by": "kyma"},
			Field:           "status",
		},
	}
}

// An agent with more managers than it can know does not start. The youngest one is left out.
func TestWatchesAreOfNoMoreManagersThanAnAgentKnows(t *testing.T) {
	t.Parallel()

	begun := time.Unix(1e9, 0)
	var watchers []v1beta2.Watcher

	for n := range defaults.MaxManagers + 1 {
		w := someWatcher("watcher-" + strconv.Itoa(n))
		w.Spec.Manager = "manager-" + strconv.Itoa(n)
		w.CreationTimestamp = metav1.NewTime(begun.Add(-time.Duration(n) * time.Hour)) // The first is the youngest.
		watchers = append(watchers, w)
	}

	got, err := Watches(watchers, names.Names{})
	if len(got) != defaults.MaxManagers || err == nil || !strings.Contains(err.Error(), "[manager-0]") {
		t.Fatalf("%d watches, %v, want all but that of manager-0", len(got), err)
	}

	for _, w := range got {
		if w.Manager == "manager-0" {
			t.Error("the youngest manager has a watch")
		}
	}
}

func TestWatches(t *testing.T) {
	t.Parallel()

	kyma := someWatcher("kyma")
	byLabel := someWatcher("by-label")
	unmanaged := someWatcher("unmanaged")
	wrong := someWatcher("wrong")
	going := someWatcher("going")
	byLabel.Labels = map[string]string{names.Names{}.ManagedBy(): "btp-manager"}
	kyma.Labels = byLabel.Labels // The manager of the spec comes first.
	byLabel.Spec = v1beta2.WatcherSpec{
		ResourceToWatch: v1beta2.WatchableGVR{Version: "v1", Resource: "secrets"},
		Field:           "spec",
	}

	unmanaged.Spec.Manager = ""
	wrong.Spec.Manager = "a/b"
	going.DeletionTimestamp = new(metav1.Now())
	stored := someWatcher("stored") // Before there were rules.
	stored.Spec.ResourceToWatch.Resource = "*"
	got, err := Watches([]v1beta2.Watcher{kyma, unmanaged, wrong, stored, going, byLabel}, names.Names{})
	if !strings.Contains(err.Error(), "have neither") || !strings.Contains(err.Error(), "want a DNS-1123 label") ||
		!errors.Is(err, watch.ErrInvalid) {
		t.Errorf("error %v, want those of all wrong Watchers", err)
	}

	for _, name := range []string{
		"kcp-system/unmanaged", "kcp-system/wrong", "kcp-system/stored",
		names.Names{}.ManagedBy(),
	} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("error %q does not name %s", err, name)
		}
	}

	want := []watch.Watch{
		{
			Name: types.NamespacedName{Namespace: "kcp-system", Name: "kyma"}, Manager: "lifecycle-manager", Field: "status",
			Resource: schema.GroupVersionResource{Group: "operator.kyma-project.io", Version: "*", Resource: "kymas"},
			Selector: watch.Selector{Labels: map[string]string{"watched-by": "kyma"}},
		},
		{
			Name: types.NamespacedName{Namespace: "kcp-system", Name: "by-label"}, Manager: "btp-manager", Field: "spec",
			Resource: schema.GroupVersionResource{Version: "v1", Resource: "secrets"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("watches (-want +got):\n%s", diff)
	}
}

func TestWrongConditionsAreLeftOut(t *testing.T) {
	t.Parallel()

	w := someWatcher("kyma")
	w.Spec.MatchConditions = []v1beta2.MatchCondition{
		{Name: "good", Expression: "true"}, {Name: "bad", Expression: "object.spec.size > limit"},
	}

	got, err := Watches([]v1beta2.Watcher{w}, names.Names{})
	if !errors.Is(err, watch.ErrInvalid) ||
		!strings.Contains(err.Error(), "spec.matchConditions[bad].expression: invalid expression: line 1, column 20") {
		t.Errorf("error %v, want one with the position", err)
	}

	want := []watch.Condition{{Name: "good", Expression: "!(type(dyn(true)) == bool) || dyn(true)"}}
	if diff := cmp.Diff(want, got[0].Conditions); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}

// The text of each watch is the JSON of a Watcher. Its conditions become those that never fail.
func TestEachFieldOfAWatchIsOneOfAWatcher(t *testing.T) {
	t.Parallel()

	_, changed := watchtest.Watches()
	for path, want := range changed {
		text, err := json.Marshal(watch.DocumentOf([]watch.Watch{want}))
		check(t, err)
		var list v1beta2.WatcherList
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		check(t, decoder.Decode(&list))
		want.Conditions[0].Expression, err = condition.Total(want.Conditions[0].Expression)
		check(t, err)

		got, err := Watches(list.Items, names.Names{})
		if diff := cmp.Diff([]watch.Watch{want}, got); diff != "" || err != nil {
			t.Errorf("%s: error %v, watches (-want +got):\n%s", path, err, diff)
		}
	}
}

// A name that is too long for a webhook would be refused with all others of a runtime.
func TestTheLongestNameOfAWatcher(t *testing.T) {
	for group, most := range map[string]int{"": 164 + 56, "fleet.example.com": 162 + 56} {
		n := names.Names{Group: group}
		w := newWatcher()
		w.Namespace = "default"
		w.Name = strings.Repeat("a", most)

		if got, err := Watches([]v1beta2.Watcher{*w}, n); err != nil || len(got) != 1 {
			t.Errorf("group %q: %d watches, %v, want one", group, len(got), err)
		}

		w.Name += "a"
		if got, err := Watches([]v1beta2.Watcher{*w}, n); !errors.Is(err, watch.ErrInvalid) || len(got) != 0 {
			t.Errorf("group %q: %d watches, %v, want none", group, len(got), err)
		}
	}
}

func TestSelector(t *testing.T) {
	t.Parallel()

	tests := map[string]struct {
		selector v1beta2.GatewaySelector
		want     string
	}{
		"labels": {v1beta2.GatewaySelector{MatchLabels: map[string]v1beta2.LabelValue{"b": "2", "a": "1"}}, "a=1,b=2"},
		"requirements": {v1beta2.GatewaySelector{MatchExpressions: []v1beta2.LabelRequirement{
			{Key: "a", Operator: "In", Values: []v1beta2.LabelValue{"x", "y"}},
		}}, "a in (x,y)"},
		"nonsense": {v1beta2.GatewaySelector{MatchExpressions: []v1beta2.LabelRequirement{{Key: "a", Operator: "Like"}}}, "Like"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			selector, err := selectorOf(&tt.selector)
			var text string
			if err != nil {
				text = err.Error()
			} else {
				text = selector.String()
			}

			if !strings.Contains(text, tt.want) {
				t.Errorf("%q, want it to say %q", text, tt.want)
			}
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()

	if err := (Options{}).withDefaults().validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}

	err := Options{Routing: "Ingress", ClusterDomain: "Cluster/Local"}.withDefaults().validate()
	if err == nil || !strings.Contains(err.Error(), "Ingress") || !strings.Contains(err.Error(), "Cluster/Local") {
		t.Errorf("error %v, want it to name both", err)
	}
}
