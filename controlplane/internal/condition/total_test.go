package condition_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/condition"
)

// program compiles an expression with the settings of an API server that matter here.
func program(t testing.TB, expression string) cel.Program {
	t.Helper()

	env, err := cel.NewEnv(
		cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("request", cel.DynType),
		cel.CrossTypeNumericComparisons(true), cel.HomogeneousAggregateLiterals(), cel.EagerlyValidateDeclarations(true),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateHomogeneousAggregateLiterals()))
	if err != nil {
		t.Fatal(err)
	}

	compiled, problems := env.Compile(expression)
	if problems.Err() != nil {
		t.Fatalf("%s does not compile: %v", expression, problems.Err())
	}

	p, err := env.Program(compiled, cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		t.Fatal(err)
	}

	return p
}

// outcome is "true", "false", or the error of an evaluation.
func outcome(p cel.Program, object, oldObject any) string {
	value, _, err := p.Eval(map[string]any{
		"object": object, "oldObject": oldObject, "request": map[string]any{"operation": "UPDATE", "name": "a"},
	})
	switch {
	case err != nil:
		return "error: " + err.Error()
	case value == types.True:
		return "true"
	case value == types.False:
		return "false"
	default:
		return "error: no bool"
	}
}

func total(t testing.TB, expression string) string {
	t.Helper()

	text, err := condition.Total(expression)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}

	return text
}

func TestTotal(t *testing.T) {
	t.Parallel()

	object := `{"metadata":{"name":"web","labels":{"a/b":"c"},"finalizers":["x","y"]},"spec":{"replicas":3,"f":1.5,` +
		`"on":true,"off":false,"none":null,"list":[{"n":"a"},{"n":"b"}],"odd":[{"n":"a"},7]}}`
	var decoded map[string]any // Its integers are int64, as in an API server.
	if err := utiljson.Unmarshal([]byte(object), &decoded); err != nil {
		t.Fatal(err)
	}

	for expression, want := range map[string]string{
		`object.spec.replicas > 2`:                                        "true",
		`object.spec.replicas > 3.0`:                                      "false",
		`object.spec.replicas > 'a'`:                                      "true", // Fails: another type.
		`object.spec.missing > 2`:                                         "true", // Fails: no such key.
		`object.spec.missing.more == 2`:                                   "true",
		`object.spec.replicas.more == 2`:                                  "true",
		`has(object.spec.missing) && object.spec.missing > 2`:             "false",
		`!has(object.spec.missing) || object.spec.missing > 2`:            "true",
		`!(has(object.spec.on) || object.spec.missing > 2)`:               "false",
		`has(object.missing.more)`:                                        "true",
		`object.spec.on`:                                                  "true",
		`object.spec.off`:                                                 "false",
		`!object.spec.on`:                                                 "false",
		`object.spec.none`:                                                "true", // Fails: no bool.
		`object.spec.none == null`:                                        "true",
		`object.spec == oldObject.spec`:                                   "true", // Fails: oldObject is null.
		`object.spec.replicas == '3'`:                                     "false",
		`object.metadata.labels['a/b'] == 'd'`:                            "false",
		`object.metadata.finalizers[1] == 'x'`:                            "false",
		`object.metadata.finalizers[2] == 'x'`:                            "true", // Fails: out of bounds.
		`object.metadata.name in ['a', 'b']`:                              "false",
		`object.spec.replicas in [1, 'b']`:                                "false",
		`'z' in object.metadata.finalizers`:                               "false",
		`'spec' in object`:                                                "true",
		`1 in object`:                                                     "true", // Fails: no such overload.
		`object.metadata.name.startsWith('x')`:                            "false",
		`object.metadata.name.matches('^w.b$')`:                           "true",
		`object.spec.replicas.matches('x')`:                               "true", // Fails: no string.
		`size(object.metadata.name) == 4`:                                 "false",
		`object.spec.list.exists(e, e.n == 'c')`:                          "false",
		`object.spec.list.all(e, e.n == 'a' || e.n == 'b')`:               "true",
		`object.spec.odd.exists(e, e.n == 'c')`:                           "true", // Fails for one element.
		`object.spec.odd.exists(e, !has(e.n))`:                            "true",
		`object.spec.replicas.exists(e, e == 1)`:                          "true", // Fails: no list.
		`object.spec.on ? object.spec.replicas > 5 : object.missing == 1`: "false",
		`request.operation == 'CREATE'`:                                   "false",
		`request.subResource != 'scale'`:                                  "true",
		`false`:                                                           "false",
	} {
		text := total(t, expression)
		if got := outcome(program(t, text), decoded, nil); got != want {
			t.Errorf("%s: %s, want %s\n%s", expression, got, want, text)
		}
	}
}

func TestRefusalsHaveAPosition(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{
		`object.spec.replicas >`:                         "line 1, column 23: Syntax error",
		"object.spec == 1 &&\n  objct.spec == 2":         `line 2, column 3: undeclared reference to "objct"`,
		`object.spec.replicas + 1 == 2`:                  `line 1, column 22: "_+_" is not allowed`,
		`int(object.spec.a) == 1`:                        `column 4: "int" is not allowed`,
		`authorizer.path('/').check('get').allowed()`:    "\"allowed\" is not allowed",
		`object.spec.a.matches('(')`:                     "column 23: error parsing regexp",
		`object.spec.a.contains(object.spec.b)`:          "want a literal string for contains",
		`object[object.a] == 1`:                          "want a literal string or integer as index",
		`{'a': 1} == object`:                             "maps and messages are not allowed",
		`object.a.exists(x, x.b.exists(y, y == 1))`:      "no macro within a macro",
		`object.a.exists(object, object == 1)`:           "want a new name",
		`object.a.exists(x, x == object.b)`:              "want a literal on one side",
		`object.a.exists(x, x in object.b)`:              "want a list of literals after in",
		`object.a.map(x, x) == []`:                       `"map" is not allowed`,
		`object.a in [object.b]`:                         "want a list of literals",
		`object.a == b'x'`:                               "want a string, a number",
		`x == 1`:                                         "undeclared reference",
		`has(object)`:                                    "want has(<value>.<field>)",
		`object.?a == 1`:                                 "unsupported syntax",
		``:                                               "Syntax error",
		strings.Repeat("object.a == 1 || ", 70) + "true": "exceeds limit",
		strings.Repeat("(", 200) + "true":                "", // Deeper than any parser goes.
		manyFields():                                     "too complex",
	} {
		if _, err := condition.Total(expression); !errors.Is(err, condition.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: error %v, want %q", expression, err, want)
		}
	}
}

func manyFields() string {
	comparisons := make([]string, 26)
	for i := range comparisons {
		comparisons[i] = fmt.Sprintf("object.a.%[1]c!=oldObject.a.%[1]c", 'a'+i)
	}

	return strings.Join(comparisons, "||")
}

// TestNoExpressionFails compares random expressions with their total form, over random objects.
func TestNoExpressionFails(t *testing.T) {
	t.Parallel()

	failed := 0
	wrapped := 0
	superfluous := 0

	for seed := range uint64(600) {
		g := generator{rand.New(rand.NewPCG(seed, 0)), ""}
		expression := g.boolean(4)
		text := total(t, expression)
		if len(text) > 12<<10 {
			t.Fatalf("%d bytes for %s", len(text), expression)
		}

		// An API server would refuse to compare literals of these types, unless they are hidden.
		hidden := strings.NewReplacer(`2.5`, `dyn(2.5)`, `'a'`, `dyn('a')`, ` 1`, ` dyn(1)`, `true`, `dyn(true)`, `null`, `dyn(null)`)
		plain := program(t, hidden.Replace(expression))
		guarded := program(t, text)

		for range 8 {
			object := g.value(3)
			oldObject := g.value(3)
			before := outcome(plain, object, oldObject)
			after := outcome(guarded, object, oldObject)

			switch {
			case strings.HasPrefix(after, "error"):
				t.Fatalf("%s fails for %v, %v: %s\n%s", expression, object, oldObject, after, text)
			case before != "false" && after != "true":
				t.Fatalf("%s is %s for %v, %v, its total form %s\n%s", expression, before, object, oldObject, after, text)
			case strings.HasPrefix(before, "error"):
				failed++
			case before == after:
				wrapped++
			default:
				superfluous++
			}
		}
	}

	t.Logf("%d evaluations failed before and none after, %d are equal, %d are true instead of false", failed, wrapped, superfluous)
	if failed < 100 || wrapped < 100 {
		t.Errorf("%d failed and %d are equal: the generator proves nothing", failed, wrapped)
	}
}

type generator struct {
	*rand.Rand

	item string
}

func (g *generator) of(choices ...string) string { return choices[g.IntN(len(choices))] }

// boolean returns an expression that is a bool, unless it fails.
func (g *generator) boolean(depth int) string {
	if depth == 0 {
		return g.of(g.operand(0), g.has())
	}

	switch g.IntN(10) {
	case 0, 1:
		return "(" + g.boolean(depth-1) + " && " + g.boolean(depth-1) + ")"
	case 2, 3:
		return "(" + g.boolean(depth-1) + " || " + g.boolean(depth-1) + ")"
	case 4:
		return "!(" + g.boolean(depth-1) + ")"
	case 5:
		return "(" + g.boolean(depth-1) + " ? " + g.boolean(depth-1) + " : " + g.boolean(depth-1) + ")"
	case 6:
		return "(" + g.operand(2) + g.of(" == ", " != ", " < ", " >= ") + g.of("'a'", " 1", "2.5", "true", "null") + ")"
	case 7:
		return g.operand(2) + "." + g.of("startsWith", "contains", "matches") + "('a')"
	case 8:
		if g.item == "" {
			return "('a' in " + g.operand(1) + ")"
		}
		return g.of("("+g.operand(1)+" in ['b', 'ab'])", "(size("+g.operand(1)+") > 1)")

	default:
		return g.macro(depth)
	}
}

func (g *generator) has() string { return "has(" + g.operand(1) + ".a)" }

func (g *generator) macro(depth int) string {
	if g.item != "" {
		return g.has()
	}

	list := g.operand(1)
	g.item = "x"
	defer func() { g.item = "" }()

	return list + g.of(".all", ".exists") + "(x, " + g.boolean(depth-1) + ")"
}

func (g *generator) operand(depth int) string {
	text := g.of("object", "oldObject")
	if g.item != "" {
		text = g.of(g.item, text)
	}

	path := make([]string, g.IntN(depth+1))
	for i := range path {
		path[i] = g.of(".a", ".b", "['a']", "[0]", "[1]")
	}

	return text + strings.Join(path, "")
}

func (g *generator) value(depth int) any {
	if kind := g.IntN(10); depth > 0 && kind < 8 {
		switch kind {
		case 0, 1:
			return []any{g.value(depth - 1), g.value(depth - 1)}
		default:
			return map[string]any{"a": g.value(depth - 1), "b": g.value(depth - 1)}
		}
	}
	return []any{nil, true, false, int64(0), int64(1), 2.5, "a", "ab", []any{}, map[string]any{}}[g.IntN(10)]
}
