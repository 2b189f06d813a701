package condition

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
)

// itemVariable is the variable of a macro in the result, so that no name hides a type.
const itemVariable = "item_"

// expression returns the term of a node.
func (t *translator) expression(e ast.Expr) (term, error) {
	switch e.Kind() {
	case ast.LiteralKind:
		return t.literal(e)
	case ast.ListKind:
		return t.list(e)
	case ast.IdentKind:
		return t.variable(e)
	case ast.SelectKind:
		return t.field(e.AsSelect().Operand(), e.AsSelect().FieldName())
	case ast.CallKind:
		return t.call(e)
	default:
		return term{}, t.refuse(e, "maps and messages are not allowed")
	}
}

// boolean returns the term of a node that must be a bool.
func (t *translator) boolean(e ast.Expr) (term, error) {
	found, err := t.expression(e)
	if err != nil || found.boolean {
		return found, err
	}
	return with(found.text, []term{found}, found.is("bool")).asBool(), nil
}

// operands returns the terms of nodes.
func (t *translator) operands(nodes []ast.Expr, translate func(ast.Expr) (term, error)) ([]term, error) {
	terms := make([]term, len(nodes))
	for i, node := range nodes {
		var err error
		if terms[i], err = translate(node); err != nil {
			return nil, err
		}
	}
	return terms, nil
}

// literal returns a constant of the type dyn.
func (t *translator) literal(e ast.Expr) (term, error) {
	text, ok := literalText(e)
	if !ok {
		return term{}, t.refuse(e, "want a string, a number, true, false or null")
	}
	return term{text: "dyn(" + text + ")", constant: true}, nil
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
func (t *translator) list(e ast.Expr) (term, error) {
	elements, err := t.operands(e.AsList().Elements(), func(e ast.Expr) (term, error) {
		if e.Kind() != ast.LiteralKind {
			return term{}, t.refuse(e, "want a list of literals")
		}
		return t.literal(e)
	})
	if err != nil {
		return term{}, err
	}
	texts := make([]string, len(elements))
	for i, element := range elements {
		texts[i] = element.text
	}
	return term{text: "dyn([" + strings.Join(texts, ", ") + "])", constant: true}, nil
}

// variable returns one of the variables of a match condition, or that of a macro.
func (t *translator) variable(e ast.Expr) (term, error) {
	switch name := e.AsIdent(); {
	case isVariable(name):
		return term{text: "dyn(" + name + ")"}, nil
	case name == t.item:
		return term{text: "dyn(" + itemVariable + ")"}, nil
	default:
		return term{}, t.refuse(e, "undeclared reference to %.40q: want object, oldObject or request", name)
	}
}

// isVariable reports whether match conditions have a variable. They also have "authorizer", for
// which no guard is known.
func isVariable(name string) bool {
	return name == "object" || name == "oldObject" || name == "request"
}

// field returns a member of a map.
func (t *translator) field(operand ast.Expr, name string) (term, error) {
	parent, err := t.expression(operand)
	if err != nil {
		return term{}, err
	}
	return parent.member(name), nil
}

// member is defined if the value is a map that has the member.
func (t term) member(name string) term {
	name = strconv.Quote(name)
	return with(t.text+"["+name+"]", []term{t}, t.is("map"), name+" in "+t.text)
}

// index returns a member of a map, or an element of a list.
func (t *translator) index(e ast.Expr) (term, error) {
	args := e.AsCall().Args()
	parent, err := t.expression(args[0])
	if err != nil {
		return term{}, err
	}
	if args[1].Kind() == ast.LiteralKind {
		switch key := args[1].AsLiteral().(type) {
		case types.String:
			return parent.member(string(key)), nil
		case types.Int:
			return parent.element(int64(key)), nil
		}
	}
	return term{}, t.refuse(args[1], "want a literal string or integer as index")
}

// element is defined if the value is a list that has the element.
func (t term) element(position int64) term {
	return with(fmt.Sprintf("%s[%d]", t.text, position), []term{t},
		t.is("list"), fmt.Sprintf("%d >= 0 && size(%s) > %d", position, t.text, position))
}
