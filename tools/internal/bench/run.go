package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Suite is the benchmarks of a package that match a regular expression of go test -bench.
type Suite struct{ Package, Pattern string }

// Run runs suites one after the other in the folder of a workspace, and returns the output. It also
// writes the output to progress. args are arguments of go test. Two processors are used, as the
// number of allocations depends on it.
func Run(ctx context.Context, dir string, suites []Suite, progress io.Writer, args ...string) (string, error) {
	var all bytes.Buffer
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for _, suite := range suites {
		command := exec.CommandContext(ctx, "go", slices.Concat(
			[]string{"test", "-run", "^$", "-bench", suite.Pattern, "-benchmem", "-cpu", "2", "-timeout", "1h"},
			args, []string{suite.Package})...)
		command.Dir = dir
		command.Env = append(os.Environ(), "GOWORK="+filepath.Join(dir, "go.work")) // Also when the caller has it off.
		command.Stdout = io.MultiWriter(&all, progress)
		command.Stderr = command.Stdout
		if err := command.Run(); err != nil {
			return "", fmt.Errorf("benchmarks %s of %s: %w\n%s", suite.Pattern, suite.Package, err, all.String())
		}
	}
	return all.String(), nil
}

// Suites returns the suites that run the benchmarks of r again.
func (r Results) Suites() []Suite {
	var suites []Suite
	for _, name := range r.Names() {
		top, _, _ := strings.Cut(name.Benchmark, "/")
		pattern := "^" + regexp.QuoteMeta(top) + "$"
		switch last := len(suites) - 1; {
		case last < 0 || suites[last].Package != name.Package:
			suites = append(suites, Suite{name.Package, pattern})
		case !slices.Contains(strings.Split(suites[last].Pattern, "|"), pattern):
			suites[last].Pattern += "|" + pattern
		}
	}
	return suites
}
