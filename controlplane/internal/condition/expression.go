package condition

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"
)

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

func (t term) is(name string) string { return "type(" + t.text + ") == " + name }

func (t term) isNumber() string {
	return "(" + t.is("int") + " || " + t.is("double") + " || " + t.is("uint") + ")"
}

func (t term) short(most int) string { return fmt.Sprintf("size(%s) <= %d", t.text, most) }

func (t term) cheap() string {
	return "(" + t.isSized() + " ? " + t.short(maxCompared) + " : true)"
}

func (t term) isSized() string {
	return "(" + t.is("string") + " || " + t.is("list") + " || " + t.is("map") + ")"
}

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

func (t *translator) literal(e ast.Expr) term {
	text, err := parser.Unparse(e, t.info)
	if _, isBytes := e.AsLiteral().(types.Bytes); isBytes || err != nil {
		return t.refuse(e, "want a string, a number, true, false or null")
	}
	return term{text: "dyn(" + text + ")", constant: true}
}

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

func (t *translator) variable(e ast.Expr) term {
	name := e.AsIdent()

	switch {
	case isVariable(name):
		return term{text: "dyn(" + name + ")"}
	case name == t.item:
		return term{text: "dyn(" + itemVariable + ")"}
	default:
		return t.refuse(e, "undeclared reference to %.40q: want object, oldObject or request", name)
	}
}

// isVariable leaves out "authorizer", for which no guard is known.
func isVariable(name string) bool {
	return name == "object" || name == "oldObject" || name == "request"
}

func (t term) member(name string) term {
	name = strconv.Quote(name)
	return with(t.text+"["+name+"]", []term{t}, t.is("map"), name+" in "+t.text)
}

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

func (t term) element(position int64) term {
	return with(fmt.Sprintf("%s[%d]", t.text, position), []term{t},
		t.is("list"), fmt.Sprintf("%d >= 0 && size(%s) > %d", position, t.text, position))
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

func (t *translator) call(e ast.Expr) term {
	switch name := e.AsCall().FunctionName(); name {
	case operators.LogicalAnd, operators.LogicalOr:
		return t.logic(e, name)
	case operators.LogicalNot:
		operand := t.boolean(e.AsCall().Args()[0])
		return with("(!"+operand.text+")", []term{operand}).asBool()
	case operators.Conditional:
		return t.conditional(e)
	case operators.Equals, operators.NotEquals:
		return t.comparison(e, name, nil)
	case operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		return t.comparison(e, name, ordered)
	case operators.In:
		return t.contained(e)
	case operators.Index:
		return t.index(e)
	default:
		return t.function(e, name)
	}
}

// logic evaluates from left to right. Where the left side decides, the right one may be undefined.
func (t *translator) logic(e ast.Expr, name string) term {
	sides := t.operands(e.AsCall().Args(), t.boolean)
	symbol, _ := operators.FindReverse(name)
	joined := sides[0]

	for _, side := range sides[1:] {
		decided := joined.text
		if name == operators.LogicalAnd {
			decided = "!" + joined.text
		}

		text := "(" + joined.text + " " + symbol + " " + side.text + ")"
		if facts := without(side.guard, joined.guard); len(facts) > 0 {
			joined = with(text, []term{joined}, "("+decided+" || "+conjunction(facts)+")")
			continue
		}

		joined = with(text, []term{joined})
	}

	return joined.asBool()
}

func (t *translator) conditional(e ast.Expr) term {
	args := e.AsCall().Args()
	condition := t.boolean(args[0])
	branches := t.operands(args[1:], t.expression)
	yes := branches[0]
	no := branches[1]
	chosen := with("("+condition.text+" ? "+yes.text+" : "+no.text+")", []term{condition},
		"("+condition.text+" ? "+conjunction(without(yes.guard, condition.guard))+" : "+
			conjunction(without(no.guard, condition.guard))+")")
	chosen.boolean = yes.boolean && no.boolean

	return chosen
}

// comparison needs cheap operands, unless one of them is a constant.
func (t *translator) comparison(e ast.Expr, name string, fact func(a, b term) string) term {
	sides := t.operands(e.AsCall().Args(), t.expression)
	var facts []string

	if fact != nil {
		facts = append(facts, fact(sides[0], sides[1]))
	}
	if !sides[0].constant && !sides[1].constant {
		if t.item != "" {
			return t.refuse(e, "want a literal on one side of a comparison within a macro")
		}
		facts = append(facts, sides[0].cheap(), sides[1].cheap())
	}

	symbol, _ := operators.FindReverse(name)
	return with("("+sides[0].text+" "+symbol+" "+sides[1].text+")", sides, facts...).asBool()
}

func ordered(a, b term) string {
	return "(" + a.isNumber() + " && " + b.isNumber() + " || " + a.is("string") + " && " + b.is("string") + ")"
}

func (t *translator) contained(e ast.Expr) term {
	sides := t.operands(e.AsCall().Args(), t.expression)
	value := sides[0]
	container := sides[1]
	if t.item != "" && !container.constant {
		return t.refuse(e, "want a list of literals after in within a macro")
	}
	return with("("+value.text+" in "+container.text+")", sides,
		"("+container.is("list")+" && "+container.short(maxContainers)+" || "+
			container.is("map")+" && "+value.is("string")+")").asBool()
}

func (t *translator) function(e ast.Expr, name string) term {
	call := e.AsCall()
	member := call.IsMemberFunction()
	arguments := len(call.Args())
	isMacro := name == operators.All || name == operators.Exists
	isText := slices.Contains([]string{"startsWith", "endsWith", "contains", "matches"}, name)

	switch {
	case name == operators.Has && !member && arguments == 1:
		return t.has(e)
	case name == "size" && member && arguments == 0:
		return t.size(call.Target())
	case name == "size" && !member && arguments == 1:
		return t.size(call.Args()[0])
	case isMacro && member && arguments == 2: // Variable and condition.
		return t.macro(e, name)
	case isText && member && arguments == 1:
		return t.text(e, name)
	default:
		return t.refuse(e, "%.40q is not allowed: want operators without arithmetic, has, size, startsWith, "+
			"endsWith, contains, matches, all or exists", name)
	}
}

func (t *translator) has(e ast.Expr) term {
	argument := e.AsCall().Args()[0]
	if argument.Kind() != ast.SelectKind {
		return t.refuse(e, "want has(<value>.<field>)")
	}

	parent := t.expression(argument.AsSelect().Operand())
	present := parent.member(argument.AsSelect().FieldName()).guard
	last := len(present) - 1

	return term{text: "(" + present[last] + ")", guard: present[:last], boolean: true}
}

func (t *translator) size(operand ast.Expr) term {
	of := t.expression(operand)
	return with("dyn(size("+of.text+"))", []term{of}, of.isSized())
}

func (t *translator) text(e ast.Expr, name string) term {
	argument := e.AsCall().Args()[0]
	if argument.Kind() != ast.LiteralKind || argument.AsLiteral().Type() != types.StringType {
		return t.refuse(argument, "want a literal string for %s", name)
	}

	value, _ := argument.AsLiteral().Value().(string)
	if _, err := regexp.Compile(value); name == "matches" && err != nil {
		return t.refuse(argument, "%v", err)
	}

	of := t.expression(e.AsCall().Target())
	most := maxText

	if t.item != "" {
		most = maxItemText
	}

	called := "(" + of.text + "." + name + "(" + strconv.Quote(value) + "))"
	return with(called, []term{of}, of.is("string"), of.short(most)).asBool()
}

// macro is all or exists, over a list. All elements must be defined.
func (t *translator) macro(e ast.Expr, name string) term {
	call := e.AsCall()
	if t.item != "" {
		return t.refuse(e, "want no macro within a macro")
	}

	variable := call.Args()[0]
	if variable.Kind() != ast.IdentKind || isVariable(variable.AsIdent()) {
		return t.refuse(variable, "want a new name of a variable")
	}

	list := t.expression(call.Target())
	t.item = variable.AsIdent()
	condition := t.boolean(call.Args()[1])
	t.item = ""
	each := func(macro, condition string) string {
		return list.text + "." + macro + "(" + itemVariable + ", " + condition + ")"
	}

	return with("("+each(name, condition.text)+")", []term{list}, list.is("list"), list.short(maxItems),
		each("all", conjunction(without(condition.guard, list.guard)))).asBool()
}
