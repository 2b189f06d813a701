package watching

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
)

// A metric of the informer that is not connected stays zero, and a hook that is not set never calls
// its metric. Both compile, so this test reads the source of the package.
func TestEachHookIsConnected(t *testing.T) {
	t.Parallel()

	file, err := parser.ParseFile(token.NewFileSet(), "watching.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}

	set := make(map[string]bool)  // the hooks that the literal of informer.Hooks sets
	used := make(map[string]bool) // the fields of the variable metrics, or of the field Metrics
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.SelectorExpr:
			if isMetrics(node.X) {
				used[node.Sel.Name] = true
			}
		case *ast.CompositeLit:
			noteHooks(set, node)
		}
		return true
	})

	for _, hook := range functionsOf(t, reflect.TypeFor[informer.Hooks]()) {
		if !set[hook] {
			t.Errorf("watching.go does not set informer.Hooks.%s: connect it", hook)
		}
	}

	for _, metric := range functionsOf(t, reflect.TypeFor[watchermetrics.Informer]()) {
		if !used[metric] {
			t.Errorf("watching.go does not use %s of watchermetrics.Informer: connect it", metric)
		}
	}
}

func isMetrics(expr ast.Expr) bool {
	switch expr := expr.(type) {
	case *ast.Ident:
		return expr.Name == "metrics"
	case *ast.SelectorExpr:
		return expr.Sel.Name == "Metrics"
	default:
		return false
	}
}

func noteHooks(set map[string]bool, literal *ast.CompositeLit) {
	typed, ok := literal.Type.(*ast.SelectorExpr)
	if !ok || typed.Sel.Name != "Hooks" {
		return
	}

	for _, element := range literal.Elts {
		pair, isPair := element.(*ast.KeyValueExpr)
		if !isPair {
			continue
		}
		if key, isName := pair.Key.(*ast.Ident); isName {
			set[key.Name] = true
		}
	}
}

func functionsOf(t *testing.T, fields reflect.Type) (names []string) {
	t.Helper()

	for field := range fields.Fields() {
		if field.Type.Kind() == reflect.Func && field.IsExported() {
			names = append(names, field.Name)
		}
	}

	if len(names) == 0 {
		t.Fatalf("%s has no functions, want hooks", fields)
	}

	return names
}
