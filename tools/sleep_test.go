package tools

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

// TestNoTestSleeps fails if a test calls time.Sleep outside of a bubble of testing/synctest. In a
// bubble time is fake and passes immediately. The linter cannot distinguish the two.
func TestNoTestSleeps(t *testing.T) {
	root := os.DirFS("..")
	fset := token.NewFileSet()
	folders := map[string][]*ast.File{}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if base := path.Base(name); name != "." && (base == "bin" || strings.HasPrefix(base, ".")) {
				return fs.SkipDir
			}
			return err
		}

		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}

		source, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}

		file, err := parser.ParseFile(fset, name, source, parser.SkipObjectResolution)
		folders[path.Dir(name)] = append(folders[path.Dir(name)], file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	for _, files := range folders {
		for _, pos := range sleeps(files) {
			t.Errorf("%s: time.Sleep in real time: use testing/synctest, or wait for the condition", fset.Position(pos))
		}
	}
}

// sleeps returns the positions at which the test files of one folder call time.Sleep outside of a
// bubble. An argument of synctest.Test, or of a helper that calls it, is inside. In a folder with a
// bubble, helpers count as inside, and only test functions are searched.
func sleeps(files []*ast.File) []token.Pos {
	makers := bubbleMakers(files)
	var found []token.Pos

	for _, file := range files {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && len(makers) > 0 && !entry(f) {
				continue
			}

			ast.Inspect(decl, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if called(call) == "time.Sleep" {
					found = append(found, call.Pos())
				}
				return !makers[called(call)]
			})
		}
	}

	return found
}

// bubbleMakers returns the functions that make a bubble: synctest.Test and its callers.
func bubbleMakers(files []*ast.File) map[string]bool {
	const synctest = "synctest.Test"
	makers := map[string]bool{}

	for _, file := range files {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}

			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && called(call) == synctest {
					makers[synctest] = true
					makers[f.Name.Name] = true
				}
				return true
			})
		}
	}

	return makers
}

// entry reports whether the test binary starts f: TestX(t *testing.T) and its like.
func entry(f *ast.FuncDecl) bool {
	if f.Recv != nil || len(f.Type.Params.List) != 1 {
		return false
	}

	pointer, ok := f.Type.Params.List[0].Type.(*ast.StarExpr)
	if !ok || !f.Name.IsExported() {
		return false
	}

	argument, ok := pointer.X.(*ast.SelectorExpr)
	return ok && nameOf(argument.X) == "testing"
}

// called returns the name of the called function as it is written: f, or pkg.F.
func called(call *ast.CallExpr) string {
	if f, ok := call.Fun.(*ast.SelectorExpr); ok {
		return nameOf(f.X) + "." + f.Sel.Name
	}
	return nameOf(call.Fun)
}

func nameOf(e ast.Expr) string {
	if ident, ok := e.(*ast.Ident); ok {
		return ident.Name
	}
	return ""
}

func TestSleeps(t *testing.T) {
	const bubble = "func TestY(t *testing.T) { synctest.Test(t, y) }\n"
	tests := map[string]struct {
		source string
		want   int
	}{
		"in real time":               {`func TestX(t *testing.T) { time.Sleep(1) }`, 1},
		"in a helper":                {`func wait() { time.Sleep(1) }`, 1},
		"in the bubble":              {`func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }`, 0},
		"beside the bubble":          {`func TestX(t *testing.T) { synctest.Test(t, f); time.Sleep(1) }`, 1},
		"in a bubble with a name":    {"func in(f func()) { synctest.Test(nil, f) }\nfunc TestX(t *testing.T) { in(func() { time.Sleep(1) }) }", 0},
		"in a helper of the bubble":  {bubble + `func wait(d time.Duration) { time.Sleep(d) }`, 0},
		"in a method of the bubble":  {bubble + `func (c *Clock) Wait(t *testing.T) { time.Sleep(1) }`, 0},
		"in another test's own time": {bubble + `func BenchmarkX(b *testing.B) { time.Sleep(1) }`, 1},
		"something else":             {`func TestX(t *testing.T) { clock.Sleep(1); time.After(1) }`, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			file, err := parser.ParseFile(token.NewFileSet(), "x_test.go", "package x\n"+test.source, 0)
			if err != nil {
				t.Fatal(err)
			}
			if got := len(sleeps([]*ast.File{file})); got != test.want {
				t.Errorf("found %d, want %d", got, test.want)
			}
		})
	}
}
