package condition

import (
	"fmt"
	"slices"
	"strings"
)

// term is an expression and the facts under which it does not fail.
type term struct {
	// text is of the type dyn, so that an API server finds no contradiction of types.
	text string
	// guard has expressions that must all be true. Each fails only if one before it is false.
	guard []string
	// constant is whether the value is in the expression itself.
	constant bool
	// boolean is whether the value is a bool if it is defined.
	boolean bool
}

// conjunction joins facts in parentheses.
func conjunction(facts []string) string {
	if len(facts) == 0 {
		return "true"
	}
	return "(" + strings.Join(facts, " && ") + ")"
}

// with returns a term that has the guards of terms and more facts, each once.
func with(text string, operands []term, facts ...string) term {
	var guard []string
	for _, operand := range operands {
		guard = append(guard, without(operand.guard, guard)...)
	}
	return term{text: text, guard: append(guard, without(facts, guard)...)}
}

// without returns the facts that are not known. Repeated facts would make an expression so long
// that an API server takes seconds to compile it.
func without(facts, known []string) []string {
	return slices.DeleteFunc(slices.Clone(facts), func(fact string) bool { return slices.Contains(known, fact) })
}

// asBool marks a term as a bool.
func (t term) asBool() term {
	t.boolean = true
	return t
}

// is states that the value has a type.
func (t term) is(name string) string { return "type(" + t.text + ") == " + name }

// isNumber is the fact that the value can be compared with a number.
func (t term) isNumber() string {
	return "(" + t.is("int") + " || " + t.is("double") + " || " + t.is("uint") + ")"
}

// short is the fact that a value with a size has at most this one.
func (t term) short(most int) string { return fmt.Sprintf("size(%s) <= %d", t.text, most) }

// cheap is the fact that a comparison of the value costs little.
func (t term) cheap() string {
	return "(" + t.isSized() + " ? " + t.short(maxCompared) + " : true)"
}

// isSized is the fact that the value has a size.
func (t term) isSized() string {
	return "(" + t.is("string") + " || " + t.is("list") + " || " + t.is("map") + ")"
}
