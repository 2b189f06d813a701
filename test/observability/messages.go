package observability

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
)

// messages returns the log messages of level warn and error in the released modules.
func messages(t testing.TB) (all []string) {
	t.Helper()
	for _, module := range []string{"core", "adapters", "listener", "cmd/agent", "keys", "agent", "internal", "controlplane"} {
		for _, file := range sources(t, filepath.Join(test.Root(), module)) {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(node ast.Node) bool {
				if call, ok := node.(*ast.CallExpr); ok && isWarning(call) {
					all = append(all, messageOf(call)...)
				}
				return true
			})
		}
	}
	// These messages are no arguments of a logger.
	all = append(all, "event refused and given up", "freshness of a runtime changed",
		"log lines were dropped: the sink was stalled")
	slices.Sort(all)
	return slices.Compact(all)
}

func sources(t testing.TB, root string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		tests := strings.Contains(path, "coretest") || strings.Contains(path, "internal/check/")
		if !tests && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// isWarning reports whether a call writes a log line of level warn or error.
func isWarning(call *ast.CallExpr) bool {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	switch method.Sel.Name {
	case "Warn", "WarnContext", "ErrorContext":
		return true
	case "Error": // Errors have such a method without arguments, and http has such a function.
		library, named := method.X.(*ast.Ident)
		return len(call.Args) > 0 && (!named || library.Name != "http")
	case "warn":
		return len(call.Args) > 1
	case "LogAttrs", "note":
		return slices.ContainsFunc(call.Args, isLevel)
	default:
		return false
	}
}

func isLevel(argument ast.Expr) bool {
	level, ok := argument.(*ast.SelectorExpr)
	return ok && (level.Sel.Name == "LevelWarn" || level.Sel.Name == "LevelError")
}

// messageOf returns the first text of a call.
func messageOf(call *ast.CallExpr) []string {
	for _, argument := range call.Args {
		if text, ok := textOf(argument); ok {
			return []string{text}
		}
	}
	return nil
}

func textOf(expression ast.Expr) (string, bool) {
	switch e := expression.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		left, ok := textOf(e.X)
		right, also := textOf(e.Y)
		return left + right, ok && also
	default:
		return "", false
	}
}
