package condition

import (
	"regexp"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// The bounds of values, in elements of a list, members of a map, or code points of a string. Within
// a macro they are smaller, because each element costs again.
const (
	maxCompared   = 16 << 10
	maxText       = 4 << 10
	maxItemText   = 128
	maxItems      = 64
	maxContainers = 1 << 10
)

// call returns the term of an operator, a function or a macro.
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

// conditional needs the facts of the branch that is taken.
func (t *translator) conditional(e ast.Expr) term {
	args := e.AsCall().Args()
	condition := t.boolean(args[0])
	branches := t.operands(args[1:], t.expression)
	yes, no := branches[0], branches[1]
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

// ordered is the fact that two values have an order.
func ordered(a, b term) string {
	return "(" + a.isNumber() + " && " + b.isNumber() + " || " + a.is("string") + " && " + b.is("string") + ")"
}

// contained is the operator in.
func (t *translator) contained(e ast.Expr) term {
	sides := t.operands(e.AsCall().Args(), t.expression)
	value, container := sides[0], sides[1]
	if t.item != "" && !container.constant {
		return t.refuse(e, "want a list of literals after in within a macro")
	}
	return with("("+value.text+" in "+container.text+")", sides,
		"("+container.is("list")+" && "+container.short(maxContainers)+" || "+
			container.is("map")+" && "+value.is("string")+")").asBool()
}

// function returns the term of a function or a macro by its name.
func (t *translator) function(e ast.Expr, name string) term {
	call := e.AsCall()
	member, arguments := call.IsMemberFunction(), len(call.Args())
	isMacro := name == operators.All || name == operators.Exists
	switch {
	case name == operators.Has && !member && arguments == 1:
		return t.has(e)
	case name == "size" && member && arguments == 0:
		return t.size(call.Target())
	case name == "size" && !member && arguments == 1:
		return t.size(call.Args()[0])
	case isMacro && member && arguments == 2: // Variable and condition.
		return t.macro(e, name)
	case isTextFunction(name) && member && arguments == 1:
		return t.text(e, name)
	default:
		return t.refuse(e, "%.40q is not allowed: want operators without arithmetic, has, size, startsWith, "+
			"endsWith, contains, matches, all or exists", name)
	}
}

// has is the macro for a field that may be absent.
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

// size is the number of code points, elements or members.
func (t *translator) size(operand ast.Expr) term {
	of := t.expression(operand)
	return with("dyn(size("+of.text+"))", []term{of}, of.isSized())
}

func isTextFunction(name string) bool {
	return name == "startsWith" || name == "endsWith" || name == "contains" || name == "matches"
}

// text is a function of a string and a literal.
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
	literal, _ := literalText(argument)
	return with("("+of.text+"."+name+"("+literal+"))", []term{of}, of.is("string"), of.short(most)).asBool()
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
