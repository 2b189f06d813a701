package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/bench"
)

// checkMemory runs the benchmarks of the baseline that have one client, and compares their bytes
// and allocations. Times depend on the machine, and do not count.
func checkMemory(ctx context.Context, repo *repository) error {
	text, err := os.ReadFile(filepath.Join(repo.root, filepath.FromSlash(bench.BaselineFile)))
	if err != nil {
		return err
	}
	before := bench.Parse(string(text)).Of(func(n bench.Name) bool {
		return repo.contains(n.Package) && !n.Concurrent()
	})
	var errs []error
	for _, suite := range before.Suites() {
		fmt.Fprintf(repo.log, "      %s: %s\n", suite.Package, suite.Pattern)
		now, err := bench.Run(ctx, repo.root, []bench.Suite{suite}, io.Discard, "-benchtime", "2000x")
		if err != nil {
			return err
		}
		inSuite := func(n bench.Name) bool { return n.Package == suite.Package }
		errs = append(errs, bench.CompareMemory(before.Of(inSuite), bench.Parse(now)))
	}
	return errors.Join(errs...)
}

// contains reports whether a package is in one of the modules.
func (r *repository) contains(pkg string) bool {
	for _, m := range r.modules {
		if pkg == m.Module.Path || strings.HasPrefix(pkg, m.Module.Path+"/") {
			return true
		}
	}
	return false
}
