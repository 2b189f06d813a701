package simulation

import (
	"slices"
	"testing"
)

// mostRuns bounds the runs of a shrink.
const mostRuns = 200

// shrinker looks for the smallest plan that fails by a rule.
type shrinker struct {
	keys *pki
	rule string
	runs int
}

// shrink leaves out faults and writes, in ever smaller parts, while the plan still fails by the rule.
func shrink(t *testing.T, plan *Plan, keys *pki, rule string) *Plan {
	t.Helper()
	s := &shrinker{keys: keys, rule: rule}
	plan = s.without(t, plan, len(plan.Faults), withoutFaults)
	plan = s.without(t, plan, len(plan.Writes), withoutWrites)
	return plan
}

func withoutFaults(plan Plan, from, to int) *Plan {
	plan.Faults = slices.Delete(slices.Clone(plan.Faults), from, min(to, len(plan.Faults)))
	return &plan
}

func withoutWrites(plan Plan, from, to int) *Plan {
	plan.Writes = slices.Delete(slices.Clone(plan.Writes), from, min(to, len(plan.Writes)))
	return &plan
}

func (s *shrinker) without(t *testing.T, plan *Plan, n int, cut func(plan Plan, from, to int) *Plan) *Plan {
	t.Helper()
	for part := max(n/2, 1); part > 0; part /= 2 {
		for from := 0; from < n && s.runs < mostRuns; {
			smaller := cut(*plan, from, from+part)
			if s.fails(t, smaller) {
				plan, n = smaller, n-min(part, n-from)
			} else {
				from += part
			}
		}
	}
	return plan
}

func (s *shrinker) fails(t *testing.T, plan *Plan) bool {
	t.Helper()
	s.runs++
	for _, v := range simulate(t, plan, s.keys, new(story)) {
		if v.Rule == s.rule {
			return true
		}
	}
	return false
}
