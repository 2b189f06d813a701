package admission_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// Package core has the kinds of owners.
func TestOwnerOfTheEvent(t *testing.T) {
	t.Parallel()
	annotated := func(value string) string {
		return widget(fmt.Sprintf(`"annotations":{"operator.kyma-project.io/owned-by":%s}`, value))
	}
	kyma := types.NamespacedName{Namespace: "kcp", Name: "kyma"}
	tests := []struct {
		name          string
		before, after string // JSON objects, absent when empty
		require       bool
		decision      admission.Decision
		owner         types.NamespacedName
		problem       string
	}{
		{"of the new object", annotated(`"kcp/old"`), annotated(`"kcp/kyma"`), true, admission.Accepted, kyma, ""},
		{"missing, required", "", widget(""), true, "no_owner", types.NamespacedName{}, "missing"},
		{"missing, optional", "", widget(""), false, admission.Accepted, types.NamespacedName{}, ""},
		{"malformed, required", "", annotated(`"kyma"`), true, "no_owner", types.NamespacedName{}, "malformed"},
		{"malformed, optional", "", annotated(`"kyma"`), false, admission.Accepted, types.NamespacedName{}, "malformed"},
		{"of an irrelevant change", widget(""), widget(""), true, admission.Unchanged, types.NamespacedName{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var problems []string
			got := newInbox()
			h := newHandler(t, got, admission.Options{
				RequireOwner: tt.require,
				Hooks: admission.Hooks{OwnerProblem: func(manager core.Manager, problem string) {
					problems = append(problems, string(manager)+" "+problem)
				}},
			})
			have := decisionOf(t, post(h, "/validate/kyma", change(t, tt.before, tt.after)), testUID)
			if have != tt.decision {
				t.Errorf("decision %q, want %q", have, tt.decision)
			}
			if tt.decision == admission.Accepted && (len(got.events) != 1 || got.events[0].Owner != tt.owner) {
				t.Errorf("events %v, want one with owner %v", got.events, tt.owner)
			}
			if tt.decision != admission.Accepted && len(got.events) > 0 {
				t.Errorf("events %v, want none", got.events)
			}
			var want []string
			if tt.problem != "" {
				want = []string{"kyma " + tt.problem}
			}
			compare(t, "owner problems", want, problems)
		})
	}
}
