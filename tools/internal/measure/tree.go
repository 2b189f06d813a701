// Package measure counts exported names and their users, lengths of functions, comments, blank
// lines and long lines of this repository. It parses Go files and does not check types.
package measure

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Root is the path of the module in the root folder.
const Root = "github.com/runtime-watcher/runtime-watcher"

// Path returns the import path of a folder of the repository. The root folder is ".".
func Path(folder string) string { return path.Join(Root, folder) }

// Folder returns the folder of an import path, if it belongs to this repository.
func Folder(imported string) (folder string, ok bool) {
	below, ok := strings.CutPrefix(imported+"/", Root+"/")
	return path.Clean(below), ok
}

// Tree is every Go file of the repository, parsed.
type Tree struct {
	modules []string
	fset    *token.FileSet
	files   []*file
	// packages maps the folder of a package to its name.
	packages map[string]string
	// used are the names with a user in another folder. usedByCode are those of them with a user
	// that is no test.
	used, usedByCode names
}

// file is one parsed file and its source.
type file struct {
	name      string
	dir       string
	module    string
	source    string
	syntax    *ast.File
	test      bool
	generated bool
}

// Load parses the Go files below root. modules are the folders of all modules, relative to root,
// with slashes. Load skips folders named bin or testdata, and those that start with a dot.
func Load(root fs.FS, modules []string) (*Tree, error) {
	t := &Tree{modules: modules, fset: token.NewFileSet(), packages: map[string]string{}}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && Skipped(name):
			return fs.SkipDir
		case entry.Type().IsRegular() && strings.HasSuffix(name, ".go"):
			return t.parse(root, name)
		}
		return nil
	})
	t.resolve()
	return t, err
}

// Skipped reports whether no module or package of the repository is in the folder.
func Skipped(folder string) bool {
	base := path.Base(folder)
	return base == "bin" || base == "testdata" || base != "." && strings.HasPrefix(base, ".")
}

func (t *Tree) parse(root fs.FS, name string) error {
	source, err := fs.ReadFile(root, name)
	if err != nil {
		return err
	}
	syntax, err := parser.ParseFile(t.fset, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	f := &file{
		name:      name,
		dir:       path.Dir(name),
		module:    t.moduleOf(name),
		source:    string(source),
		syntax:    syntax,
		test:      strings.HasSuffix(name, "_test.go"),
		generated: ast.IsGenerated(syntax),
	}
	if f.module == "" {
		return fmt.Errorf("%s belongs to no module", name)
	}
	if !f.test {
		t.packages[f.dir] = syntax.Name.Name
	}
	t.files = append(t.files, f)
	return nil
}

// moduleOf returns the innermost module that holds the file, or "".
func (t *Tree) moduleOf(name string) string {
	longest := ""
	for _, module := range t.modules {
		below := module == "." || strings.HasPrefix(name, module+"/")
		if below && len(module) > len(longest) {
			longest = module
		}
	}
	return longest
}

// handwritten returns the files of a module that are neither tests nor generated.
func (t *Tree) handwritten(module string) []*file {
	var files []*file
	for _, f := range t.files {
		if f.module == module && !f.test && !f.generated {
			files = append(files, f)
		}
	}
	return files
}

// Released reports whether users import the module. They import every module, unless its folder is
// bench, examples, test, tools, or below one of them.
func Released(module string) bool {
	first, _, _ := strings.Cut(module, "/")
	return !slices.Contains([]string{"bench", "examples", "test", "tools"}, first)
}
