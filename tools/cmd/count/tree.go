package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// tree is every handwritten Go file of the repository, parsed.
type tree struct {
	modules []string
	files   []file
	// packages maps the folder of a package to its name.
	packages map[string]string
	// used contains the users of "<folder>.Name" in other folders.
	used map[string]users
}

type file struct {
	*ast.File

	dir    string
	module string
	test   bool
}

// load parses the Go files below root. The folders of modules are relative to root, with slashes.
func load(root fs.FS, all []string) (*tree, error) {
	t := &tree{modules: all, packages: map[string]string{}, used: map[string]users{}}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && modules.Skipped(name):
			return fs.SkipDir
		case entry.Type().IsRegular() && strings.HasSuffix(name, ".go"):
			return t.parse(root, name)
		}
		return nil
	})
	for _, f := range t.files {
		t.use(f)
	}
	return t, err
}

func (t *tree) parse(root fs.FS, name string) error {
	source, err := fs.ReadFile(root, name)
	if err != nil {
		return err
	}

	syntax, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}

	f := file{File: syntax, dir: path.Dir(name), module: t.moduleOf(name), test: strings.HasSuffix(name, "_test.go")}
	if !f.test {
		t.packages[f.dir] = syntax.Name.Name
	}
	if !ast.IsGenerated(syntax) {
		t.files = append(t.files, f)
	}

	return nil
}

// moduleOf returns the innermost module that holds the file, or "".
func (t *tree) moduleOf(name string) string {
	longest := ""
	for _, module := range t.modules {
		below := module == "." || strings.HasPrefix(name, module+"/")
		if below && len(module) > len(longest) {
			longest = module
		}
	}
	return longest
}
