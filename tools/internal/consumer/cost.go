package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/measure"
)

// cost has the modules that an import may bring to a program.
type cost struct {
	name string
	// imports are the packages that the program imports.
	imports []string
	// free are packages of others that the program imports anyway. Their modules cost nothing.
	free []string
	// linked are the modules that provide packages.
	linked []string
	// tests are further modules in go.sum, for the tests of the imported packages. `go mod tidy`
	// adds them, and no build downloads them.
	tests []string
}

func costs() []cost {
	const (
		root            = measure.Root
		operator        = root + "/adapters/controllerruntime"
		apimachinery    = "k8s.io/apimachinery"
		goCmp, goleak   = "github.com/google/go-cmp", "go.uber.org/goleak"
		controllersRoot = "sigs.k8s.io/controller-runtime/pkg/"
	)
	return []cost{
		{
			name:    "cost of core",
			imports: []string{root + "/core", root + "/core/contract", root + "/core/fleet", root + "/core/outbox"},
			linked:  []string{root, apimachinery}, tests: []string{goCmp, goleak},
		},
		{
			name: "cost of listener", imports: []string{root + "/listener"},
			linked: []string{root, apimachinery}, tests: []string{goCmp, goleak},
		},
		{
			name: "cost of controllerruntime", imports: []string{operator},
			free: []string{
				controllersRoot + "builder", controllersRoot + "cache",
				controllersRoot + "handler", controllersRoot + "manager",
			},
			linked: []string{operator, root},
		},
	}
}

func (w *world) checkCost(ctx context.Context, c cost) (string, error) {
	got, err := w.measure(ctx, append(slices.Clone(c.imports), c.free...))
	if err != nil || len(c.free) == 0 {
		return c.compare(got, err)
	}
	free, err := w.measure(ctx, c.free)
	return c.compare(got.without(free), err)
}

func (c cost) compare(got bill, err error) (string, error) {
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("%d modules linked, %d more in go.sum for tests", len(got.linked), len(got.tests))
	return text, errors.Join(unexpected("linked", got.linked, c.linked),
		unexpected("in go.sum for tests", got.tests, c.tests))
}

func unexpected(where string, got map[string]bool, want []string) error {
	have, agreed := slices.Sorted(maps.Keys(got)), slices.Sorted(slices.Values(want))
	if slices.Equal(have, agreed) {
		return nil
	}
	return fmt.Errorf("modules %s: %v, want %v", where, have, agreed)
}

// bill is the measured cost of a program.
type bill struct{ linked, tests map[string]bool }

func (b bill) without(other bill) bill {
	paid := func(path string, _ bool) bool { return other.linked[path] || other.tests[path] }
	maps.DeleteFunc(b.linked, paid)
	maps.DeleteFunc(b.tests, paid)
	return b
}

// measure makes a program with these imports.
func (w *world) measure(ctx context.Context, imports []string) (bill, error) {
	dir, err := os.MkdirTemp(w.dir, "cost-")
	if err != nil {
		return bill{}, err
	}
	code := "package main\n\nimport (\n\t_ \"" + strings.Join(imports, "\"\n\t_ \"") + "\"\n)\n\nfunc main() {}\n"
	err = errors.Join(os.WriteFile(filepath.Join(dir, "main.go"), []byte(code), 0o600), w.init(ctx, dir))
	if err != nil {
		return bill{}, err
	}
	return w.read(ctx, dir)
}

func (w *world) read(ctx context.Context, dir string) (bill, error) {
	b := bill{linked: map[string]bool{}, tests: map[string]bool{}}
	list, err := w.Run(ctx, dir, "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")
	if err != nil {
		return b, err
	}
	for path := range strings.FieldsSeq(list) {
		b.linked[path] = true
	}
	delete(b.linked, modulePath)
	sum, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	for line := range strings.Lines(string(sum)) {
		fields := strings.Fields(line)
		if !strings.HasSuffix(fields[1], "/go.mod") && !b.linked[fields[0]] {
			b.tests[fields[0]] = true
		}
	}
	return b, err
}
