package observability

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
)

// constants returns the values of the string constants of a file with names that match pattern. It
// fails if there is none.
func constants(t testing.TB, file, pattern string) (values []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(test.Root(), file), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(pattern)
	ast.Inspect(parsed, func(node ast.Node) bool {
		if spec, ok := node.(*ast.ValueSpec); ok && names.MatchString(spec.Names[0].Name) {
			values = append(values, literals(spec)...)
		}
		return true
	})
	if len(values) == 0 {
		t.Fatalf("%s has no string constant that matches %s", file, pattern)
	}
	return values
}

// literals returns the strings of a constant. One that is made of others has none.
func literals(spec *ast.ValueSpec) (values []string) {
	for _, value := range spec.Values {
		if literal, ok := value.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				values = append(values, text)
			}
		}
	}
	return values
}
