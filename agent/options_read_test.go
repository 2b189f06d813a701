package agent

import (
	"go/ast"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// An option that no code reads compiles and has no effect, so this test reads the sources of the
// agent. Defaults and validation are no use of an option.
func TestEachOptionIsRead(t *testing.T) {
	t.Parallel()

	read := make(map[string]bool) // such as "opts.Contract" and "Webhook.MaxConnections"
	for _, file := range sources(t) {
		for _, declaration := range file.Decls {
			if onlyChecks(declaration) {
				continue
			}
			ast.Inspect(declaration, func(node ast.Node) bool {
				if selector, ok := node.(*ast.SelectorExpr); ok {
					read[lastOf(selector.X)+"."+selector.Sel.Name] = true
				}
				return true
			})
		}
	}

	// The names of the fields, variables and receivers that have the type.
	holders := map[reflect.Type][]string{
		reflect.TypeFor[Options]():          {"opts"},
		reflect.TypeFor[ControlPlane]():     {"ControlPlane", "to"},
		reflect.TypeFor[Webhook]():          {"Webhook", "webhook"},
		reflect.TypeFor[OwnConfiguration](): {"Own", "own", "o"},
		reflect.TypeFor[Canary]():           {"Canary", "c"},
		reflect.TypeFor[Outbox]():           {"o"},
	}
	for options, names := range holders {
		for field := range options.Fields() {
			if _, hasFields := holders[field.Type]; hasFields {
				continue
			}

			isRead := slices.ContainsFunc(names, func(name string) bool { return read[name+"."+field.Name] })
			if !isRead {
				t.Errorf("no code of this package reads %s.%s: use the option, or remove it",
					options.Name(), field.Name)
			}
		}
	}
}

// onlyChecks reports whether a function only sets defaults or validates.
func onlyChecks(declaration ast.Decl) bool {
	function, ok := declaration.(*ast.FuncDecl)
	return ok && (function.Name.Name == "withDefaults" || strings.HasPrefix(function.Name.Name, "validate"))
}
