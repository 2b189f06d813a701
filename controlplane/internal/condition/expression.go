package condition

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"
)

const itemVariable = "item_"

func (t *translator) translate(e ast.Expr) term {
	switch e.Kind() {
	case ast.LiteralKind:
		return t.translateLiteral(e)
	case ast.ListKind:
		return t.translateList(e)
	case ast.IdentKind:
		return t.translateVariable(e)
	case ast.SelectKind:
		return t.translate(e.AsSelect().Operand()).member(e.AsSelect().FieldName())
	case ast.CallKind:
		return t.translateCall(e)
	default:
		return t.refuse(e, "maps and messages are not allowed")
	}
}

func (t *translator) translateBoolean(e ast.Expr) term {
	found := t.translate(e)
	if found.boolean {
		return found
	}
	return with(found.text, []term{found}, found.isType("bool")).asBool()
}

func (t *translator) translateAll(nodes []ast.Expr, translate func(ast.Expr) term) []term {
	terms := make([]term, len(nodes))
	for i, node := range nodes {
		terms[i] = translate(node)
	}
	return terms
}

func (t *translator) translateLiteral(e ast.Expr) term {
	text, err := parser.Unparse(e, t.info)
	if _, isBytes := e.AsLiteral().(types.Bytes); isBytes || err != nil {
		return t.refuse(e, "want a string, a number, true, false or null")
	}
	return term{text: "dyn(" + text + ")", constant: true}
}

func (t *translator) translateList(e ast.Expr) term {
	elements := t.translateAll(e.AsList().Elements(), func(e ast.Expr) term {
		if e.Kind() != ast.LiteralKind {
			return t.refuse(e, "want a list of literals")
		}
		return t.translateLiteral(e)
	})

	texts := make([]string, len(elements))
	for i, element := range elements {
		texts[i] = element.text
	}
	return term{text: "dyn([" + strings.Join(texts, ", ") + "])", constant: true}
}

func (t *translator) translateVariable(e ast.Expr) term {
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

func (t *translator) translateIndex(e ast.Expr) term {
	args := e.AsCall().Args()
	parent := t.translate(args[0])
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

func (t *translator) translateCall(e ast.Expr) term {
	switch name := e.AsCall().FunctionName(); name {
	case operators.LogicalAnd, operators.LogicalOr:
		return t.translateLogic(e, name)
	case operators.LogicalNot:
		operand := t.translateBoolean(e.AsCall().Args()[0])
		return with("(!"+operand.text+")", []term{operand}).asBool()
	case operators.Conditional:
		return t.translateConditional(e)
	case operators.Equals, operators.NotEquals:
		return t.translateComparison(e, name, nil)
	case operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		return t.translateComparison(e, name, ordered)
	case operators.In:
		return t.translateIn(e)
	case operators.Index:
		return t.translateIndex(e)
	default:
		return t.translateFunction(e, name)
	}
}

// translateLogic evaluates from left to right. Where the left side decides, the right one may be
// undefined.
func (t *translator) translateLogic(e ast.Expr, name string) term {
	sides := t.translateAll(e.AsCall().Args(), t.translateBoolean)
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

func (t *translator) translateConditional(e ast.Expr) term {
	args := e.AsCall().Args()
	condition := t.translateBoolean(args[0])
	branches := t.translateAll(args[1:], t.translate)
	yes := branches[0]
	no := branches[1]
	chosen := with("("+condition.text+" ? "+yes.text+" : "+no.text+")", []term{condition},
		"("+condition.text+" ? "+conjunction(without(yes.guard, condition.guard))+" : "+
			conjunction(without(no.guard, condition.guard))+")")
	chosen.boolean = yes.boolean && no.boolean

	return chosen
}

// translateComparison needs cheap operands, unless one of them is a constant.
func (t *translator) translateComparison(e ast.Expr, name string, fact func(a, b term) string) term {
	sides := t.translateAll(e.AsCall().Args(), t.translate)
	var facts []string

	if fact != nil {
		facts = append(facts, fact(sides[0], sides[1]))
	}
	if !sides[0].constant && !sides[1].constant {
		if t.item != "" {
			return t.refuse(e, "want a literal on one side of a comparison within a macro")
		}
		facts = append(facts, sides[0].isCheap(), sides[1].isCheap())
	}

	symbol, _ := operators.FindReverse(name)
	return with("("+sides[0].text+" "+symbol+" "+sides[1].text+")", sides, facts...).asBool()
}

func ordered(a, b term) string {
	return "(" + a.isNumber() + " && " + b.isNumber() + " || " + a.isType("string") + " && " + b.isType("string") + ")"
}

func (t *translator) translateIn(e ast.Expr) term {
	sides := t.translateAll(e.AsCall().Args(), t.translate)
	value := sides[0]
	container := sides[1]
	if t.item != "" && !container.constant {
		return t.refuse(e, "want a list of literals after in within a macro")
	}
	return with("("+value.text+" in "+container.text+")", sides,
		"("+container.isType("list")+" && "+container.isShort(maxContainers)+" || "+
			container.isType("map")+" && "+value.isType("string")+")").asBool()
}

func (t *translator) translateFunction(e ast.Expr, name string) term {
	call := e.AsCall()
	member := call.IsMemberFunction()
	arguments := len(call.Args())
	isMacro := name == operators.All || name == operators.Exists
	isText := slices.Contains([]string{"startsWith", "endsWith", "contains", "matches"}, name)

	switch {
	case name == operators.Has && !member && arguments == 1:
		return t.translateHas(e)
	case name == "size" && member && arguments == 0:
		return t.translateSize(call.Target())
	case name == "size" && !member && arguments == 1:
		return t.translateSize(call.Args()[0])
	case isMacro && member && arguments == 2: // Variable and condition.
		return t.translateMacro(e, name)
	case isText && member && arguments == 1:
		return t.translateText(e, name)
	default:
		return t.refuse(e, "%.40q is not allowed: want operators without arithmetic, has, size, startsWith, "+
			"endsWith, contains, matches, all or exists", name)
	}
}

func (t *translator) translateHas(e ast.Expr) term {
	argument := e.AsCall().Args()[0]
	if argument.Kind() != ast.SelectKind {
		return t.refuse(e, "want has(<value>.<field>)")
	}

	parent := t.translate(argument.AsSelect().Operand())
	present := parent.member(argument.AsSelect().FieldName()).guard
	last := len(present) - 1

	return term{text: "(" + present[last] + ")", guard: present[:last], boolean: true}
}

func (t *translator) translateSize(operand ast.Expr) term {
	of := t.translate(operand)
	return with("dyn(size("+of.text+"))", []term{of}, of.isSized())
}

func (t *translator) translateText(e ast.Expr, name string) term {
	argument := e.AsCall().Args()[0]
	if argument.Kind() != ast.LiteralKind || argument.AsLiteral().Type() != types.StringType {
		return t.refuse(argument, "want a literal string for %s", name)
	}

	value, _ := argument.AsLiteral().Value().(string)
	if _, err := regexp.Compile(value); name == "matches" && err != nil {
		return t.refuse(argument, "%v", err)
	}

	of := t.translate(e.AsCall().Target())
	most := maxText

	if t.item != "" {
		most = maxItemText
	}

	called := "(" + of.text + "." + name + "(" + strconv.Quote(value) + "))"
	return with(called, []term{of}, of.isType("string"), of.isShort(most)).asBool()
}

// translateMacro is all or exists, over a list. All elements must be defined.
func (t *translator) translateMacro(e ast.Expr, name string) term {
	call := e.AsCall()
	if t.item != "" {
		return t.refuse(e, "want no macro within a macro")
	}

	variable := call.Args()[0]
	if variable.Kind() != ast.IdentKind || isVariable(variable.AsIdent()) {
		return t.refuse(variable, "want a new name of a variable")
	}

	list := t.translate(call.Target())
	t.item = variable.AsIdent()
	condition := t.translateBoolean(call.Args()[1])
	t.item = ""
	each := func(macro, condition string) string {
		return list.text + "." + macro + "(" + itemVariable + ", " + condition + ")"
	}

	return with("("+each(name, condition.text)+")", []term{list}, list.isType("list"), list.isShort(maxItems),
		each("all", conjunction(without(condition.guard, list.guard)))).asBool()
}
