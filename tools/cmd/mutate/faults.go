package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// fault replaces the bytes of a source from one offset to another.
type fault struct {
	file, what string
	source     []byte
	from, to   int
	text       string
	in         *function
	// line and column are where the fault begins.
	line, column int
}

// function is the body of a function without its braces, as offsets.
type function struct {
	from, to int
	// results means that the function has results, so each path ends with a return.
	results bool
}

// body returns the body of the function with the fault in it.
func (f *fault) body() string {
	return string(slices.Concat(f.source[f.in.from:f.from], []byte(f.text), f.source[f.to:f.in.to]))
}

// String shows the place of a fault, its kind and the code, on one line.
func (f *fault) String() string {
	before := string(f.source[f.from:f.to])
	return fmt.Sprintf("%s:%d: %s: %s -> %s", f.file, f.line, f.what, oneLine(before), oneLine(f.text))
}

func oneLine(code string) string {
	const most = 80
	line := strings.Join(strings.Fields(code), " ")
	if len(line) > most {
		return line[:most] + "…"
	}
	return line
}

// faultsOf returns all faults in the functions of a folder, in their order. Tests, generated files
// and functions with labels have none.
func faultsOf(folder string) ([]fault, error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}

	var all []fault
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}

		source, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}

		some, err := faultsIn(name, source)
		if err != nil {
			return nil, err
		}

		all = append(all, some...)
	}

	return all, nil
}

func faultsIn(name string, source []byte) ([]fault, error) {
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, name, source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(tree) {
		return nil, nil
	}

	f := finder{files: files, name: name, source: source}
	for _, declared := range tree.Decls {
		if decl, ok := declared.(*ast.FuncDecl); ok && decl.Body != nil && !hasLabel(decl) {
			f.in = &function{
				from: f.offset(decl.Body.Lbrace) + 1, to: f.offset(decl.Body.Rbrace), results: decl.Type.Results != nil,
			}
			ast.Inspect(decl.Body, f.visit)
		}
	}

	return f.all, nil
}

// hasLabel reports whether a function has a label. A label cannot occur twice in a function.
func hasLabel(decl *ast.FuncDecl) (found bool) {
	ast.Inspect(decl, func(node ast.Node) bool {
		_, is := node.(*ast.LabeledStmt)
		found = found || is
		return !found
	})

	return found
}

// finder collects the faults of one file.
type finder struct {
	files  *token.FileSet
	name   string
	source []byte
	in     *function
	all    []fault
}

// visit adds the faults of one node. A text of a log line or of an error has none.
func (f *finder) visit(node ast.Node) bool {
	switch n := node.(type) {
	case *ast.CallExpr:
		if isText(n) {
			return false
		}
		f.swapArguments(n)
	case *ast.IfStmt:
		f.replace(n.Cond, "negated", "!("+f.code(n.Cond)+")")
	case *ast.BinaryExpr:
		f.changeOperator(n)
	case *ast.BasicLit:
		f.changeNumber(n)
	case *ast.Ident:
		f.changeName(n)
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); !ok || !isText(call) {
			f.replace(n, "dropped", "")
		}
	case *ast.DeferStmt, *ast.IncDecStmt:
		f.replace(n, "dropped", "")
	case *ast.BranchStmt:
		if n.Tok != token.FALLTHROUGH {
			f.replace(n, "dropped", "")
		}
	case *ast.AssignStmt:
		f.dropAssignment(n)
	case *ast.ReturnStmt:
		f.changeReturn(n)
	}
	return true
}

func (f *finder) code(node ast.Node) string {
	return string(f.source[f.offset(node.Pos()):f.offset(node.End())])
}

func (f *finder) offset(at token.Pos) int { return f.files.Position(at).Offset }

func (f *finder) replace(node ast.Node, what, text string) {
	at := f.files.Position(node.Pos())
	f.all = append(f.all, fault{
		file: f.name, what: what, source: f.source, from: at.Offset, to: f.offset(node.End()), text: text,
		in: f.in, line: at.Line, column: at.Column,
	})
}

// changeOperator moves a bound by one, takes the other operator, or drops one operand of a
// condition.
func (f *finder) changeOperator(n *ast.BinaryExpr) {
	x := f.code(n.X)
	y := f.code(n.Y)
	other := map[token.Token]token.Token{
		token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
		token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
		token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
	}
	if op, known := other[n.Op]; known {
		f.replace(n, "operator", x+" "+op.String()+" "+y)
	}
	if n.Op == token.LAND || n.Op == token.LOR {
		f.replace(n, "operand dropped", x)
		f.replace(n, "operand dropped", y)
	}
}

func (f *finder) changeNumber(n *ast.BasicLit) {
	if number, err := strconv.Atoi(n.Value); n.Kind == token.INT && err == nil {
		f.replace(n, "number", strconv.Itoa(number+1))
	}
}

func (f *finder) changeName(n *ast.Ident) {
	switch n.Name {
	case "true":
		f.replace(n, "constant", "false")
	case "false":
		f.replace(n, "constant", "true")
	case "min":
		f.replace(n, "bound", "max")
	case "max":
		f.replace(n, "bound", "min")
	}
}

// dropAssignment keeps the values, because each variable of a function must be used.
func (f *finder) dropAssignment(n *ast.AssignStmt) {
	if n.Tok == token.DEFINE || len(n.Lhs) != len(n.Rhs) {
		return
	}

	values := make([]string, len(n.Rhs))
	for i := range n.Rhs {
		values[i] = f.code(n.Rhs[i])
	}

	blanks := strings.TrimSuffix(strings.Repeat("_, ", len(values)), ", ")
	if f.code(n.Lhs[0]) != "_" {
		f.replace(n, "dropped", blanks+" = "+strings.Join(values, ", "))
	}
}

// changeReturn makes a function return no error, or continue where a function without results
// returns.
func (f *finder) changeReturn(n *ast.ReturnStmt) {
	if len(n.Results) == 0 {
		f.replace(n, "dropped", "")
		return
	}

	last := n.Results[len(n.Results)-1]
	if f.code(last) != "nil" {
		f.replace(last, "nil", "nil")
	}
}

func (f *finder) swapArguments(n *ast.CallExpr) {
	for i := 1; i < len(n.Args); i++ {
		first := n.Args[i-1]
		second := n.Args[i]
		at := f.files.Position(first.Pos())
		f.all = append(f.all, fault{
			file: f.name, what: "swapped", source: f.source, from: at.Offset, to: f.offset(second.End()),
			text: f.code(second) + ", " + f.code(first), in: f.in, line: at.Line, column: at.Column,
		})
	}
}

// isText reports whether a call makes a text that only people read: a log line or an error.
func isText(call *ast.CallExpr) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}

	switch name := selector.Sel.Name; name {
	case "Debug", "Info", "Warn", "Errorf", "DebugContext", "InfoContext", "WarnContext", "ErrorContext":
		return true
	case "Error":
		return len(call.Args) > 0
	case "New":
		of, _ := selector.X.(*ast.Ident)
		return of != nil && of.Name == "errors"
	default:
		return false
	}
}
