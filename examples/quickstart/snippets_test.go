package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

var update = flag.Bool("update", false, "write the code of the repository into the documents")

// snippet is a block of Go in a document, behind a comment that names its functions and types.
var snippet = regexp.MustCompile("(?s)<!-- code: (\\S+) (\\w+(?: \\w+)*)(, with imports)? -->\n```go\n.*?```\n")

// TestDocumentsShowCode holds that the documents show code that compiles. With -update it writes that code.
func TestDocumentsShowCode(t *testing.T) {
	const least = 3 // To embed a listener, to poll, and to install the agent.
	shown := 0
	for _, file := range documents(t) {
		have := read(t, file)
		shown += len(snippet.FindAllString(have, -1))
		want := snippet.ReplaceAllStringFunc(have, func(block string) string { return refresh(t, block) })
		switch {
		case want == have:
		case *update:
			if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
				t.Error(err)
			}
		default:
			t.Errorf("%s shows other code than there is: go test ./examples/quickstart -run Documents -update", file)
		}
	}
	if shown < least {
		t.Errorf("the documents show %d functions, want at least %d", shown, least)
	}
}

// refresh returns a snippet with the present code.
func refresh(t *testing.T, block string) string {
	t.Helper()
	marker, _, _ := strings.Cut(block, "\n")
	parts := snippet.FindStringSubmatch(block)
	f := parseFile(t, "../../"+parts[1])
	var declarations []ast.Node
	var code []string
	for name := range strings.FieldsSeq(parts[2]) {
		declaration := f.declaration(t, name)
		declarations = append(declarations, declaration)
		code = append(code, f.text(declaration)+"\n")
	}
	if parts[3] != "" {
		code = append([]string{f.imports(declarations)}, code...)
	}
	return marker + "\n```go\n" + strings.Join(code, "\n") + "```\n"
}

// goFile is a parsed file of Go.
type goFile struct {
	source []byte
	set    *token.FileSet
	file   *ast.File
}

func parseFile(t *testing.T, name string) goFile {
	t.Helper()
	source := []byte(read(t, name))
	set := token.NewFileSet()
	file := lab.Must(parser.ParseFile(set, name, source, parser.ParseComments))
	return goFile{source, set, file}
}

// declaration returns the function or the type of that name.
func (f *goFile) declaration(t *testing.T, name string) ast.Node {
	t.Helper()
	for _, declared := range f.file.Decls {
		if function, ok := declared.(*ast.FuncDecl); ok && function.Name.Name == name {
			return function
		}
		general, ok := declared.(*ast.GenDecl)
		if !ok || len(general.Specs) != 1 {
			continue
		}
		if spec, ok := general.Specs[0].(*ast.TypeSpec); ok && spec.Name.Name == name {
			return general
		}
	}
	t.Fatalf("no function or type %s in %s", name, f.file.Name)
	return nil
}

// text returns the source of a node without the comment above it.
func (f *goFile) text(node ast.Node) string {
	return string(f.source[f.set.Position(node.Pos()).Offset:f.set.Position(node.End()).Offset])
}

// imports returns the imports that nodes use, in the groups of the file.
func (f *goFile) imports(nodes []ast.Node) string {
	used := make(map[string]bool)
	for _, node := range nodes {
		ast.Inspect(node, func(n ast.Node) bool {
			if selector, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := selector.X.(*ast.Ident); ok {
					used[x.Name] = true
				}
			}
			return true
		})
	}
	var text bytes.Buffer
	previous := 0
	for _, spec := range f.file.Imports {
		line := f.set.Position(spec.Pos()).Line
		if previous > 0 && line > previous+1 && text.Len() > 0 && !strings.HasSuffix(text.String(), "\n\n") {
			text.WriteString("\n")
		}
		if previous = line; used[nameOf(spec)] {
			fmt.Fprintf(&text, "\t%s\n", f.text(spec))
		}
	}
	return "import (\n" + strings.TrimRight(text.String(), "\n") + "\n)\n"
}

func nameOf(spec *ast.ImportSpec) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	imported, _ := strconv.Unquote(spec.Path.Value)
	return path.Base(imported)
}
