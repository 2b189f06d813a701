package main

import (
	"go/ast"
	"path"
	"strconv"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// users says which files in other folders use a name.
type users int

const (
	nothing users = iota
	tests
	code
)

func (u users) String() string { return [...]string{"nothing", "tests", "code"}[u] }

// use notes every "<folder>.Name" that a file names through an import. The modules that are never
// released are tests.
func (t *tree) use(f file) {
	by := code
	if f.test || !modules.Released(f.module) && f.module != "examples" {
		by = tests
	}

	imports := t.imports(f)
	ast.Inspect(f.File, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			if dir, ok := imports[nameOf(selector.X)]; ok {
				name := dir + "." + selector.Sel.Name
				t.used[name] = max(by, t.used[name])
			}
		}
		return true
	})
}

// imports maps the name of each import of this repository to its folder. The file's own folder is
// left out, because an external test package is no user from outside.
func (t *tree) imports(f file) map[string]string {
	imports := map[string]string{}
	for _, spec := range f.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		if dir, ok := modules.Folder(imported); ok && dir != f.dir {
			imports[t.importName(spec, dir)] = dir
		}
	}
	return imports
}

func (t *tree) importName(spec *ast.ImportSpec, dir string) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	if name := t.packages[dir]; name != "" {
		return name
	}
	return path.Base(dir)
}
