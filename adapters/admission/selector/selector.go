// Package selector compares label selectors by their meaning. A platform may reorder the selector
// of a webhook and may add requirements.
package selector

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// constraint is the demand of a label selector on the value of one label. All requirements of the
// label together make one constraint, in any order.
type constraint struct {
	in      sets.Set[string] // nil: any value
	notIn   sets.Set[string] // an object without the label satisfies it
	present bool             // the label must exist
	absent  bool             // the label must not exist
}

// meaning is the demand of a label selector on each label. Two selectors with the same meaning
// select the same objects.
type meaning map[string]constraint

// meaningOf returns false if a requirement has an unknown operator.
func meaningOf(selector *metav1.LabelSelector) (meaning, bool) {
	wanted := make(meaning)
	if selector == nil {
		return wanted, true
	}

	for key, value := range selector.MatchLabels {
		wanted.addRequirement(key, metav1.LabelSelectorOpIn, []string{value})
	}

	for _, requirement := range selector.MatchExpressions {
		if !wanted.addRequirement(requirement.Key, requirement.Operator, requirement.Values) {
			return nil, false
		}
	}

	for key, c := range wanted {
		wanted[key] = c.reduced()
	}

	return wanted, true
}

func (m meaning) addRequirement(key string, operator metav1.LabelSelectorOperator, values []string) (known bool) {
	c := m[key]
	switch operator {
	case metav1.LabelSelectorOpIn:
		allowed := sets.New(values...)
		if c.in != nil {
			allowed = allowed.Intersection(c.in)
		}

		c.in = allowed
	case metav1.LabelSelectorOpNotIn:
		c.notIn = c.notIn.Union(sets.New(values...))
	case metav1.LabelSelectorOpExists:
		c.present = true
	case metav1.LabelSelectorOpDoesNotExist:
		c.absent = true
	default:
		return false
	}

	m[key] = c
	return true
}

// reduced leaves out requirements that follow from the rest, so that equal constraints have equal
// fields. A constraint that nothing satisfies has no value in its list.
func (c constraint) reduced() constraint {
	mustExist := c.present || c.in != nil

	switch {
	case c.absent && mustExist:
		return constraint{in: sets.New[string]()}
	case c.absent:
		return constraint{absent: true}
	case c.in != nil:
		return constraint{in: c.in.Difference(c.notIn)}
	default:
		return constraint{notIn: c.notIn, present: c.present}
	}
}

func (c constraint) equal(other constraint) bool {
	if c.present != other.present || c.absent != other.absent {
		return false
	}

	isSameList := (c.in == nil) == (other.in == nil) && c.in.Equal(other.in)
	return isSameList && c.notIn.Equal(other.notIn)
}

func (m meaning) equal(other meaning) bool { return maps.EqualFunc(m, other, constraint.equal) }

// text is the same for two selectors of the same meaning.
func (m meaning) text() string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(m)) {
		c := m[key]
		fmt.Fprintf(&text, "%q in %t %q not in %q present %t absent %t;", key,
			c.in != nil, slices.Sorted(maps.Keys(c.in)), slices.Sorted(maps.Keys(c.notIn)), c.present, c.absent)
	}
	return text.String()
}

// Meaning returns a text that is the same for two selectors that select the same objects. It
// returns false if a requirement has an unknown operator.
func Meaning(selector *metav1.LabelSelector) (text string, known bool) {
	wanted, known := meaningOf(selector)
	if !known {
		return "", false
	}
	return wanted.text(), true
}

// ExclusionsBeyond returns the requirements that live has in addition to ours, if each of them only
// excludes objects by a label. Objects without that label stay selected. ExclusionsBeyond returns
// false if live lacks a requirement of ours, or selects only objects with a certain label.
func ExclusionsBeyond(ours, live *metav1.LabelSelector) ([]metav1.LabelSelectorRequirement, bool) {
	want, known := meaningOf(ours)
	have, knownToo := meaningOf(live)
	if !known || !knownToo {
		return nil, false
	}

	var beyond []metav1.LabelSelectorRequirement
	for _, key := range slices.Sorted(maps.Keys(have)) {
		exclusion, ok := have[key].exclusionBeyond(want[key])
		if !ok {
			return nil, false
		}
		if exclusion != nil {
			exclusion.Key = key
			beyond = append(beyond, *exclusion)
		}
	}

	// The exclusions must be the whole difference.
	whole := With(ours, beyond)
	again, _ := meaningOf(whole)
	return beyond, again.equal(have)
}

// exclusionBeyond returns the exclusion that makes c of a constraint of ours, nil if the two are
// equal.
func (c constraint) exclusionBeyond(ours constraint) (*metav1.LabelSelectorRequirement, bool) {
	exclude := func(values sets.Set[string]) (*metav1.LabelSelectorRequirement, bool) {
		return &metav1.LabelSelectorRequirement{
			Operator: metav1.LabelSelectorOpNotIn, Values: slices.Sorted(maps.Keys(values)),
		}, true
	}
	switch {
	case c.equal(ours):
		return nil, true
	case len(c.in) > 0: // A part of our list.
		return exclude(ours.in.Difference(c.in))
	case c.absent && !ours.present && ours.in == nil:
		return &metav1.LabelSelectorRequirement{Operator: metav1.LabelSelectorOpDoesNotExist}, true
	case c.notIn.IsSuperset(ours.notIn) && c.present == ours.present:
		return exclude(c.notIn.Difference(ours.notIn))
	default:
		return nil, false
	}
}

// With returns a copy of a selector with more requirements.
func With(selector *metav1.LabelSelector, more []metav1.LabelSelectorRequirement) *metav1.LabelSelector {
	if selector == nil {
		selector = &metav1.LabelSelector{}
	}

	whole := selector.DeepCopy()
	whole.MatchExpressions = append(whole.MatchExpressions, more...)
	return whole
}

// Text returns an exclusion as kubectl accepts it.
func Text(requirement metav1.LabelSelectorRequirement) string {
	switch requirement.Operator {
	case metav1.LabelSelectorOpDoesNotExist:
		return "!" + requirement.Key
	default:
		return fmt.Sprintf("%s notin (%s)", requirement.Key, strings.Join(requirement.Values, ","))
	}
}
