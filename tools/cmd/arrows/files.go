package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"strings"
)

// files are the files of one package, without tests.
type files struct {
	names []string
	uses  [][]bool // uses[a][b] means that a names a declaration of b.
}

// readFiles needs no dependencies: it resolves the names of the package itself only.
func readFiles(folder string) (*files, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}

	set := token.NewFileSet()
	var parsed []*ast.File
	f := &files{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		if ast.IsGenerated(file) || len(file.Decls) == 0 {
			continue
		}
		parsed = append(parsed, file)
		f.names = append(f.names, filepath.Base(path))
	}

	f.uses = make([][]bool, len(f.names))
	for n := range f.uses {
		f.uses[n] = make([]bool, len(f.names))
	}
	f.resolve(set, parsed)
	return f, nil
}

func (f *files) count() (arrows int) {
	for _, row := range f.uses {
		for _, isUsed := range row {
			if isUsed {
				arrows++
			}
		}
	}
	return arrows
}

// resolve finds the declaration of each name. The types of other packages are unknown, so a private
// method that is called through one of them is found by its name, if only one method has it.
func (f *files) resolve(set *token.FileSet, parsed []*ast.File) {
	info := &types.Info{Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object)}
	config := types.Config{Importer: emptyPackages{}, Error: func(error) {}}
	pkg, _ := config.Check("", set, parsed, info)

	index := make(map[string]int)
	for n, name := range f.names {
		index[name] = n
	}
	fileOf := func(place token.Pos) int { return index[filepath.Base(set.Position(place).Filename)] }

	methods := methodsByName(info)
	note := func(name *ast.Ident, object types.Object) {
		if isDeclaration(pkg, object) && fileOf(name.Pos()) != fileOf(object.Pos()) {
			f.uses[fileOf(name.Pos())][fileOf(object.Pos())] = true
		}
	}

	for name, object := range info.Uses {
		note(name, object)
	}
	for _, file := range parsed {
		ast.Inspect(file, func(n ast.Node) bool {
			call, isSelector := n.(*ast.SelectorExpr)
			if !isSelector || info.Uses[call.Sel] != nil {
				return true
			}
			if found := methods[call.Sel.Name]; len(found) == 1 {
				note(call.Sel, found[0])
			}
			return true
		})
	}
}

// methodsByName returns the private methods of the package.
func methodsByName(info *types.Info) map[string][]types.Object {
	methods := make(map[string][]types.Object)
	for _, object := range info.Defs {
		function, isFunction := object.(*types.Func)
		if isFunction && function.Signature().Recv() != nil && !function.Exported() {
			methods[function.Name()] = append(methods[function.Name()], function)
		}
	}
	return methods
}

// isDeclaration is true for the names of the package itself, for its methods and for fields.
func isDeclaration(pkg *types.Package, object types.Object) bool {
	if object == nil || object.Pkg() != pkg || !object.Pos().IsValid() {
		return false
	}

	switch object := object.(type) {
	case *types.Func:
		return true
	case *types.Var:
		return object.IsField() || object.Parent() == pkg.Scope()
	default:
		return object.Parent() == pkg.Scope()
	}
}

// emptyPackages replaces all imports.
type emptyPackages struct{}

func (emptyPackages) Import(name string) (*types.Package, error) {
	base := path.Base(name)
	isVersion := len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == ""
	if isVersion {
		base = path.Base(path.Dir(name))
	}

	pkg := types.NewPackage(name, base)
	pkg.MarkComplete()
	return pkg, nil
}
