package main

import (
	"go/ast"
	"slices"
	"strings"
)

// exported returns the exported names of a module that other modules can reach, methods included,
// sorted: "<folder>.Name" and "<folder>.Type.Method". Packages named main, and packages below a
// folder named internal, have no such names.
func (t *tree) exported(module string) []string {
	var names []string
	for _, f := range t.files {
		importable := f.Name.Name != "main" && !slices.Contains(strings.Split(f.dir, "/"), "internal")
		if f.module != module || f.test || !importable {
			continue
		}

		for _, decl := range f.Decls {
			for _, name := range declared(decl) {
				names = append(names, f.dir+"."+name)
			}
		}
	}

	slices.Sort(names)
	return names
}

// declared returns the exported names that a declaration adds to its package.
func declared(decl ast.Decl) (names []string) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		return exportedOnly(decl.Name, receiver(decl))
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, exportedOnly(spec.Name, "")...)
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					names = append(names, exportedOnly(name, "")...)
				}
			}
		}
	}
	return names
}

// exportedOnly returns the name, preceded by the name of its receiver's type, if both are exported.
func exportedOnly(name *ast.Ident, receiver string) []string {
	switch {
	case !name.IsExported() || receiver != "" && !ast.IsExported(receiver):
		return nil
	case receiver != "":
		return []string{receiver + "." + name.Name}
	}
	return []string{name.Name}
}

// receiver returns the name of a receiver's type without pointer and type parameters.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}

	expr := f.Recv.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		default:
			return nameOf(expr)
		}
	}
}

func nameOf(expr ast.Expr) string {
	if ident, ok := expr.(*ast.Ident); ok {
		return ident.Name
	}
	return ""
}
