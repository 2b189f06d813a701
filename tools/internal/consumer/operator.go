package consumer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/measure"
)

// operatorSources is the folder with the consumer: an operator and its unit tests.
const operatorSources = "tools/internal/consumer/testdata/operator"

// examples are folders that the consumer copies, as users do.
var examples = []string{"minimal", "source", "transport"}

// checkOperator builds and tests a module that imports all released modules.
func (w *world) checkOperator(ctx context.Context) (string, error) {
	dir := filepath.Join(w.dir, "operator")
	err := copyFolder(filepath.Join(w.root, filepath.FromSlash(operatorSources)), dir)
	for _, example := range examples {
		err = errors.Join(err, w.copyExample(example, filepath.Join(dir, example)))
	}
	if err != nil {
		return "", err
	}
	if err := w.init(ctx, dir); err != nil {
		return "", err
	}
	for _, args := range [][]string{{"build", "./..."}, {"vet", "./..."}, {"test", "./..."}} {
		if _, err := w.Run(ctx, dir, "go", args...); err != nil {
			return "", err
		}
	}
	return "an operator, a transport and a change source build and pass their tests", nil
}

// copyExample copies the code of an example and its testdata. Tests of documents stay behind.
func (w *world) copyExample(name, to string) error {
	from := filepath.Join(w.root, "examples", name)
	err := copyFolder(from, to)
	tests, _ := filepath.Glob(filepath.Join(to, "*_test.go")) // The pattern is well-formed.
	for _, test := range tests {
		err = errors.Join(err, rehome(test))
	}
	return err
}

// rehome changes the import paths of examples to those in the module of the consumer.
func rehome(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	moved := strings.ReplaceAll(string(text), measure.Path("examples")+"/", modulePath+"/")
	return os.WriteFile(file, []byte(moved), 0o600)
}

const modulePath = "example.com/consumer"

// init makes a module of the code in dir. It may require all released modules. The sums of other
// modules are those of this repository. `go mod tidy` removes unused ones.
func (w *world) init(ctx context.Context, dir string) error {
	var mod strings.Builder
	fmt.Fprintf(&mod, "module %s\n\ngo 1.26.0\n\nrequire (\n", modulePath)
	for _, m := range w.released {
		fmt.Fprintf(&mod, "\t%s %s\n", m.Path, w.version)
	}
	mod.WriteString(")\n")
	sums, err := w.sums()
	if err != nil {
		return err
	}
	err = errors.Join(os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod.String()), 0o600),
		os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600))
	if err != nil {
		return err
	}
	_, err = w.Run(ctx, dir, "go", "mod", "tidy")
	return err
}

// sums returns the lines of all go.sum of the released modules.
func (w *world) sums() (all []byte, err error) {
	for _, m := range w.released {
		lines, err := os.ReadFile(filepath.Join(w.root, filepath.FromSlash(m.Dir), "go.sum"))
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	return all, nil
}
