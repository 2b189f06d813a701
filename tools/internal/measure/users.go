package measure

import (
	"go/ast"
	"path"
	"strconv"
	"strings"
)

// names is a set of "<folder>.Name".
type names map[string]bool

func (n names) has(name string) bool { return n[name] }

// resolve fills in the names that files use from other folders.
func (t *Tree) resolve() {
	t.used, t.usedByCode = names{}, names{}
	for _, f := range t.files {
		if f.generated {
			continue
		}
		for _, name := range t.usedIn(f) {
			t.used[name] = true
			if !f.test && !strings.HasPrefix(f.name, "test/") {
				t.usedByCode[name] = true
			}
		}
	}
}

// usedIn returns every "<folder>.Name" that a file names through an import.
func (t *Tree) usedIn(f *file) []string {
	imports := t.imports(f)
	var used []string
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			if dir, ok := imports[nameOf(selector.X)]; ok {
				used = append(used, dir+"."+selector.Sel.Name)
			}
		}
		return true
	})
	return used
}

// imports maps the name of each import of this repository to its folder. The file's own folder is
// left out, because an external test package is no user from outside.
func (t *Tree) imports(f *file) map[string]string {
	imports := map[string]string{}
	for _, spec := range f.syntax.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		dir, ok := Folder(imported)
		if !ok || dir == f.dir {
			continue
		}
		imports[t.importName(spec, dir)] = dir
	}
	return imports
}

func (t *Tree) importName(spec *ast.ImportSpec, dir string) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	if name := t.packages[dir]; name != "" {
		return name
	}
	return path.Base(dir)
}

func nameOf(expr ast.Expr) string {
	if ident, ok := expr.(*ast.Ident); ok {
		return ident.Name
	}
	return ""
}
