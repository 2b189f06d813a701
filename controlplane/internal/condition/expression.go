package condition

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
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

// itemVariable is the variable of a macro in the result, so that no name hides a type.
const itemVariable = "item_"

func (t *translator) expression(e ast.Expr) term {
	switch e.Kind() {
	case ast.LiteralKind:
		return t.literal(e)
	case ast.ListKind:
		return t.list(e)
	case ast.IdentKind:
		return t.variable(e)
	case ast.SelectKind:
		return t.expression(e.AsSelect().Operand()).member(e.AsSelect().FieldName())
	case ast.CallKind:
		return t.call(e)
	default:
		return t.refuse(e, "maps and messages are not allowed")
	}
}

// boolean returns the term of a node that must be a bool.
func (t *translator) boolean(e ast.Expr) term {
	found := t.expression(e)
	if found.boolean {
		return found
	}
	return with(found.text, []term{found}, found.is("bool")).asBool()
}

func (t *translator) operands(nodes []ast.Expr, translate func(ast.Expr) term) []term {
	terms := make([]term, len(nodes))
	for i, node := range nodes {
		terms[i] = translate(node)
	}
	return terms
}

// literal returns a constant of the type dyn.
func (t *translator) literal(e ast.Expr) term {
	text, ok := literalText(e)
	if !ok {
		return t.refuse(e, "want a string, a number, true, false or null")
	}
	return term{text: "dyn(" + text + ")", constant: true}
}

// literalText returns a literal in the notation of CEL.
func literalText(e ast.Expr) (string, bool) {
	switch value := e.AsLiteral().(type) {
	case types.String:
		return strconv.Quote(string(value)), true
	case types.Int:
		return strconv.FormatInt(int64(value), 10), true
	case types.Uint:
		return strconv.FormatUint(uint64(value), 10) + "u", true
	case types.Double:
		return strconv.FormatFloat(float64(value), 'e', -1, 64), true
	case types.Bool:
		return strconv.FormatBool(bool(value)), true
	case types.Null:
		return "null", true
	default:
		return "", false
	}
}

// list returns a list of literals.
func (t *translator) list(e ast.Expr) term {
	elements := t.operands(e.AsList().Elements(), func(e ast.Expr) term {
		if e.Kind() != ast.LiteralKind {
			return t.refuse(e, "want a list of literals")
		}
		return t.literal(e)
	})
	texts := make([]string, len(elements))
	for i, element := range elements {
		texts[i] = element.text
	}
	return term{text: "dyn([" + strings.Join(texts, ", ") + "])", constant: true}
}

// variable returns one of the variables of a match condition, or that of a macro.
func (t *translator) variable(e ast.Expr) term {
	switch name := e.AsIdent(); {
	case isVariable(name):
		return term{text: "dyn(" + name + ")"}
	case name == t.item:
		return term{text: "dyn(" + itemVariable + ")"}
	default:
		return t.refuse(e, "undeclared reference to %.40q: want object, oldObject or request", name)
	}
}

// isVariable reports whether match conditions have a variable. They also have "authorizer", for
// which no guard is known.
func isVariable(name string) bool {
	return name == "object" || name == "oldObject" || name == "request"
}

// member is defined if the value is a map that has the member.
func (t term) member(name string) term {
	name = strconv.Quote(name)
	return with(t.text+"["+name+"]", []term{t}, t.is("map"), name+" in "+t.text)
}

// index returns a member of a map, or an element of a list.
func (t *translator) index(e ast.Expr) term {
	args := e.AsCall().Args()
	parent := t.expression(args[0])
	if args[1].Kind() == ast.LiteralKind {
		switch key := args[1].AsLiteral().(type) {
		case types.String:
			return parent.member(string(key))
		case types.Int:
			return parent.element(int64(key))
		}
	}
	return t.refuse(args[1], "want a literal string or integer as index")
}

// element is defined if the value is a list that has the element.
func (t term) element(position int64) term {
	return with(fmt.Sprintf("%s[%d]", t.text, position), []term{t},
		t.is("list"), fmt.Sprintf("%d >= 0 && size(%s) > %d", position, t.text, position))
}
