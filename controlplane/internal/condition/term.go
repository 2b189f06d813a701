package condition

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

type term struct {
	// text has the type dyn, so that an API server finds no type conflict.
	text string
	// guard contains expressions that must all be true. Each fails only if one before it is false.
	guard []string
	// constant says whether the value is in the expression itself.
	constant bool
	// boolean says whether the value is a bool if it is defined.
	boolean bool
}

func conjunction(facts []string) string {
	if len(facts) == 0 {
		return "true"
	}
	return "(" + strings.Join(facts, " && ") + ")"
}

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

func (t term) asBool() term {
	t.boolean = true
	return t
}

func (t term) isType(name string) string { return "type(" + t.text + ") == " + name }

func (t term) isNumber() string {
	return "(" + t.isType("int") + " || " + t.isType("double") + " || " + t.isType("uint") + ")"
}

func (t term) isShort(most int) string { return fmt.Sprintf("size(%s) <= %d", t.text, most) }

func (t term) isCheap() string {
	return "(" + t.isSized() + " ? " + t.isShort(maxCompared) + " : true)"
}

func (t term) isSized() string {
	return "(" + t.isType("string") + " || " + t.isType("list") + " || " + t.isType("map") + ")"
}

func (t term) member(name string) term {
	name = strconv.Quote(name)
	return with(t.text+"["+name+"]", []term{t}, t.isType("map"), name+" in "+t.text)
}

func (t term) element(position int64) term {
	return with(fmt.Sprintf("%s[%d]", t.text, position), []term{t},
		t.isType("list"), fmt.Sprintf("%d >= 0 && size(%s) > %d", position, t.text, position))
}

// The bounds of values, in elements of a list, members of a map, or code points of a string. Within
// a macro they are smaller, because each element costs again.
const (
	maxCompared   = 16 << 10
	maxText       = 4 << 10
	maxItemText   = 128
	maxItems      = 64
	maxContainers = 1 << 10
)
