package consumer

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// operatorSources is the folder with an operator and its unit tests.
const operatorSources = "tools/internal/consumer/testdata/operator"

// examples are folders that the consumer copies, as users do.
var examples = []string{"minimal", "multicluster", "source", "transport"}

// checkOperator builds and tests a module that imports all released modules.
func (w *world) checkOperator(ctx context.Context) (string, error) {
	dir := filepath.Join(w.dir, "operator")
	err := os.CopyFS(dir, os.DirFS(filepath.Join(w.Dir, filepath.FromSlash(operatorSources))))

	for _, example := range examples {
		err = errors.Join(err, w.copyExample(example, filepath.Join(dir, example)))
	}

	if err == nil {
		err = w.init(ctx, dir)
	}
	if err == nil {
		_, err = w.Run(ctx, dir, "go", "test", "./...")
	}

	return "an operator, a transport and a change source build and pass their tests", err
}

// copyExample copies an example. Tests that need the laboratory stay behind: it is not released.
func (w *world) copyExample(name, to string) error {
	err := os.CopyFS(to, os.DirFS(filepath.Join(w.Dir, "examples", name)))
	tests, _ := filepath.Glob(filepath.Join(to, "*_test.go")) // The pattern is well-formed.
	for _, test := range tests {
		err = errors.Join(err, rehome(test))
	}
	return err
}

// rehome changes import paths to the paths of the consumer. It removes a test with the laboratory.
func rehome(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if bytes.Contains(text, []byte(modules.Path("test")+"/")) {
		return os.Remove(file)
	}

	text = bytes.ReplaceAll(text, []byte(modules.Path("examples")+"/"), []byte(modulePath+"/"))
	return os.WriteFile(file, text, 0o600)
}

const modulePath = "example.com/consumer"

// init makes a module of the code in dir, which may require all released modules. The versions and
// sums of other modules are taken from our examples, which are already compiled.
func (w *world) init(ctx context.Context, dir string) error {
	mod, err := os.ReadFile(filepath.Join(w.Dir, "examples", "go.mod"))
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, "go.mod"), mod, 0o600), w.writeSums(dir))
	edit := []string{"mod", "edit", "-module=" + modulePath}

	for _, m := range w.all {
		edit = append(edit, "-dropreplace="+m.Path, "-droprequire="+m.Path)
		if m.Released() {
			edit = append(edit, "-require="+m.Path+"@"+w.version)
		}
	}

	for _, args := range [][]string{edit, {"mod", "tidy"}} {
		if err == nil {
			_, err = w.Run(ctx, dir, "go", args...)
		}
	}

	return err
}

// writeSums writes the lines of all go.sum files that belong to other modules.
func (w *world) writeSums(dir string) error {
	var all []string
	for _, m := range w.all {
		text, err := os.ReadFile(filepath.Join(w.Dir, filepath.FromSlash(m.Dir), "go.sum"))
		if err != nil {
			return err
		}

		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, modules.Root) {
				all = append(all, line)
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, "go.sum"), []byte(strings.Join(all, "")), 0o600)
}
