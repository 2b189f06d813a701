package measure

import (
	"go/ast"
	"slices"
	"strings"
)

// Exported returns the exported names of a module that other modules can reach, methods included,
// sorted: "<folder>.Name" and "<folder>.Type.Method". Packages named main and those below a folder
// named internal have none.
func (t *Tree) Exported(module string) []string {
	return t.exported(module, func(string) bool { return true })
}

// TopLevel returns the exported names of a module without its methods, sorted.
func (t *Tree) TopLevel(module string) []string {
	return t.exported(module, func(name string) bool { return !strings.Contains(name, ".") })
}

// exported calls keep with "Name" or "Type.Method".
func (t *Tree) exported(module string, keep func(name string) bool) []string {
	var names []string
	for _, f := range t.handwritten(module) {
		if !importable(f) {
			continue
		}
		for _, decl := range f.syntax.Decls {
			for _, name := range declared(decl) {
				if keep(name) {
					names = append(names, f.dir+"."+name)
				}
			}
		}
	}
	slices.Sort(names)
	return names
}

// Unused returns the exported top-level names of a module that no file in another folder of the
// repository names. Generated files do not count as users.
func (t *Tree) Unused(module string) []string {
	return slices.DeleteFunc(t.TopLevel(module), t.used.has)
}

// UsedByTests returns the exported top-level names that are used in other folders, but only by
// tests and by the modules below test/.
func (t *Tree) UsedByTests(module string) []string {
	return slices.DeleteFunc(t.TopLevel(module), func(name string) bool {
		return !t.used.has(name) || t.usedByCode.has(name)
	})
}

func importable(f *file) bool {
	return f.syntax.Name.Name != "main" && !slices.Contains(strings.Split(f.dir, "/"), "internal")
}

// declared returns the exported names that a declaration adds to its package. A method counts when
// its receiver's type is exported.
func declared(decl ast.Decl) []string {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		return declaredFunc(decl)
	case *ast.GenDecl:
		var names []string
		for _, spec := range decl.Specs {
			names = append(names, declaredSpec(spec)...)
		}
		return names
	}
	return nil
}

func declaredFunc(f *ast.FuncDecl) []string {
	if !f.Name.IsExported() {
		return nil
	}
	if f.Recv == nil {
		return []string{f.Name.Name}
	}
	receiver := receiverOf(f.Recv.List[0].Type)
	if !ast.IsExported(receiver) {
		return nil
	}
	return []string{receiver + "." + f.Name.Name}
}

// receiverOf returns the name of a receiver's type without pointer and type parameters.
func receiverOf(expr ast.Expr) string {
	switch expr := expr.(type) {
	case *ast.Ident:
		return expr.Name
	case *ast.StarExpr:
		return receiverOf(expr.X)
	case *ast.IndexExpr:
		return receiverOf(expr.X)
	case *ast.IndexListExpr:
		return receiverOf(expr.X)
	}
	return ""
}

func declaredSpec(spec ast.Spec) []string {
	var idents []*ast.Ident
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		idents = []*ast.Ident{spec.Name}
	case *ast.ValueSpec:
		idents = spec.Names
	}
	var names []string
	for _, ident := range idents {
		if ident.IsExported() {
			names = append(names, ident.Name)
		}
	}
	return names
}
