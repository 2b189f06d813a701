package agent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// A metric that the agent does not connect stays zero, and a hook that the agent does not set never
// calls its metric. Both compile, so this test reads the sources of the agent.
func TestEachHookIsConnected(t *testing.T) {
	t.Parallel()

	used := make(map[string]bool) // such as "metrics.Reviewed", and "admission.Hooks.Reviewed" in a literal
	for _, file := range sources(t) {
		ast.Inspect(file, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.SelectorExpr:
				used[lastOf(node.X)+"."+node.Sel.Name] = true
			case *ast.CompositeLit:
				noteKeys(used, node)
			}
			return true
		})
	}

	if !used["metrics.KeyMaterial"] {
		t.Error("no file of this package uses metrics.KeyMaterial: connect it")
	}

	for prefix, hooks := range map[string]reflect.Type{
		"metrics":         reflect.TypeFor[watchermetrics.Agent](),
		"admission.Hooks": reflect.TypeFor[admission.Hooks](),
		"httpmtls.Hooks":  reflect.TypeFor[httpmtls.Hooks](),
		"outbox.Hooks":    reflect.TypeFor[outbox.Hooks](),
		"keys.FilesHooks": reflect.TypeFor[keys.FilesHooks](),
	} {
		functions := 0
		for field := range hooks.Fields() {
			if field.Type.Kind() != reflect.Func || !field.IsExported() {
				continue
			}

			functions++
			if !used[prefix+"."+field.Name] {
				t.Errorf("no file of this package uses %s.%s: connect it", prefix, field.Name)
			}
		}

		if functions == 0 {
			t.Errorf("%s has no functions, want hooks", hooks)
		}
	}
}

// sources returns the files of this package without its tests.
func sources(t *testing.T) (files []*ast.File) {
	t.Helper()

	names, err := filepath.Glob("*.go")
	check(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}

		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		check(t, err)
		files = append(files, file)
	}

	return files
}

// lastOf returns the last name of an expression: "metrics" for b.metrics.
func lastOf(expr ast.Expr) string {
	switch expr := expr.(type) {
	case *ast.Ident:
		return expr.Name
	case *ast.SelectorExpr:
		return expr.Sel.Name
	default:
		return ""
	}
}

// noteKeys notes the fields that a literal of a type of another package sets.
func noteKeys(used map[string]bool, literal *ast.CompositeLit) {
	typed, ok := literal.Type.(*ast.SelectorExpr)
	if !ok {
		return
	}

	for _, element := range literal.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			used[lastOf(typed.X)+"."+typed.Sel.Name+"."+lastOf(pair.Key)] = true
		}
	}
}
