package main

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
)

// checkSleep fails if a test calls time.Sleep outside of a bubble of testing/synctest. In a bubble
// time is fake and passes at once. The linter cannot distinguish the two.
func checkSleep(ctx context.Context, repo *repository) error {
	files, err := repo.files(ctx, "*_test.go")
	if err != nil {
		return err
	}
	folders := map[string][]string{}
	for _, name := range files {
		folders[path.Dir(name)] = append(folders[path.Dir(name)], name)
	}
	var errs []error
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		fset := token.NewFileSet()
		var parsed []*ast.File
		for _, name := range folders[folder] {
			file, err := repo.parse(fset, name)
			if err != nil {
				return err
			}
			parsed = append(parsed, file)
		}
		for _, pos := range sleeps(parsed) {
			at := fset.Position(pos)
			errs = append(errs, fmt.Errorf("%s:%d: time.Sleep in real time", at.Filename, at.Line))
		}
	}
	return errors.Join(errs...)
}

func (r *repository) parse(fset *token.FileSet, name string) (*ast.File, error) {
	source, err := os.ReadFile(filepath.Join(r.root, filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	return parser.ParseFile(fset, name, source, parser.SkipObjectResolution)
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
