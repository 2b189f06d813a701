package main

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

// checkExported prints the number of exported names of each released module. It fails if the number
// differs from tools/exported.txt, so that a new name is a decision.
func checkExported(_ context.Context, repo *repository) error {
	tree, err := measure.Load(os.DirFS(repo.root), repo.dirs())
	if err != nil {
		return err
	}
	agreed, err := os.ReadFile(filepath.Join(repo.root, filepath.FromSlash(measure.ExportedFile)))
	if err != nil {
		return err
	}
	counts := tree.ExportedCounts()
	for line := range strings.Lines(counts) {
		fmt.Fprintf(repo.log, "      %s\n", strings.TrimRight(line, "\n"))
	}
	return compareCounts(parseCounts(string(agreed)), parseCounts(counts))
}

func (r *repository) dirs() []string {
	dirs := make([]string, 0, len(r.modules))
	for _, m := range r.modules {
		dirs = append(dirs, m.Dir)
	}
	return dirs
}

// parseCounts maps the module of each line "<number> <module>" to its number.
func parseCounts(text string) map[string]string {
	counts := map[string]string{}
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 2 {
			counts[fields[1]] = fields[0]
		}
	}
	return counts
}

func compareCounts(agreed, counts map[string]string) error {
	var errs []error
	for _, module := range slices.Sorted(maps.Keys(counts)) {
		if got, want := counts[module], agreed[module]; got != want {
			errs = append(errs, fmt.Errorf("%s: %s exported names, %s says %s",
				module, got, measure.ExportedFile, orNothing(want)))
		}
	}
	for _, module := range slices.Sorted(maps.Keys(agreed)) {
		if counts[module] == "" {
			errs = append(errs, fmt.Errorf("%s: no such module, %s says %s",
				module, measure.ExportedFile, agreed[module]))
		}
	}
	return errors.Join(errs...)
}

func orNothing(number string) string {
	if number == "" {
		return "nothing"
	}
	return number
}
