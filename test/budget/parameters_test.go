package budget

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
)

// mostParameters is how many positional parameters an exported function may have, its context included.
const mostParameters = 4

// longCalls are the exported functions that break the rule of parameters, and each says why.
var longCalls = map[string]string{
	"adapters/controllerruntime/remote/remotetest.Repeat": "only tests call it",
	"core/coretest.Changed":                               "only tests call it",
}

// A reader cannot see at the call which of five values is which, and the compiler takes two strings in
// either order. After a release neither can change.
func TestExportedCallsAreShort(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	forImportable(t, func(folder string, file *ast.File) {
		if ast.IsGenerated(file) || file.Name.Name == "main" {
			return
		}

		for _, decl := range file.Decls {
			f, isFunc := decl.(*ast.FuncDecl)
			if !isFunc || !f.Name.IsExported() || hasPrivateReceiver(f) {
				continue
			}
			problem := longCall(f.Type)
			name := folder + "." + f.Name.Name
			if problem != "" && longCalls[name] == "" {
				t.Errorf("%s has %s: take a struct", name, problem)
			}
			seen[name] = seen[name] || problem != ""
		}
	})

	for name := range longCalls {
		if !seen[name] {
			t.Errorf("%s keeps the rule of parameters: remove it from the table", name)
		}
	}
}

// hasPrivateReceiver reports whether a function is a method of a type that no importer can name.
func hasPrivateReceiver(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return false
	}
	var receiver *ast.Ident // The first name: those of type parameters follow.
	ast.Inspect(f.Recv.List[0].Type, func(node ast.Node) bool {
		if name, isName := node.(*ast.Ident); isName && receiver == nil {
			receiver = name
		}
		return receiver == nil
	})
	return receiver != nil && !receiver.IsExported()
}

// forImportable visits each source file of the folders that users can import. A folder is relative
// to the root, with slashes.
func forImportable(t *testing.T, visit func(folder string, file *ast.File)) {
	t.Helper()
	test.NoticeSources(t)

	skipped := strings.Fields("internal testdata bin cmd test tools examples .git")
	err := filepath.WalkDir(test.Root(), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains(skipped, entry.Name()):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}

		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(test.Root(), filepath.Dir(path))
		if err != nil {
			return err
		}
		visit(filepath.ToSlash(folder), file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// longCall says what is wrong with the parameters of a function, and nothing if they are right.
func longCall(f *ast.FuncType) string {
	count := 0
	strs := 0
	for _, field := range f.Params.List {
		names := max(len(field.Names), 1)
		count += names
		if ident, ok := field.Type.(*ast.Ident); ok && ident.Name == "string" {
			strs += names
		} else {
			strs = 0
		}
		if strs > 1 {
			return "two strings side by side"
		}
	}
	if count > mostParameters {
		return "more than four positional parameters"
	}
	return ""
}

func TestLongCallsAreFound(t *testing.T) {
	t.Parallel()
	for source, bad := range map[string]bool{
		"func(a, b, c, d int)":            false,
		"func(a, b, c, d, e int)":         true,
		"func(a string, n int, b string)": false,
		"func(a, b string)":               true,
		"func(a string, b string)":        true,
		"func(n int, _, b string)":        true,
		"func(string, string)":            true,
	} {
		expr, err := parser.ParseExpr(source)
		if err != nil {
			t.Fatal(err)
		}
		f, isType := expr.(*ast.FuncType)
		if !isType {
			t.Fatalf("%s is %T, want a type of functions", source, expr)
		}
		if got := longCall(f); (got != "") != bad {
			t.Errorf("%s: %q, want a problem: %v", source, got, bad)
		}
	}
}
