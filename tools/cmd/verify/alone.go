package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/measure"
)

// heavy are modules that start an API server in tests. A module that requires one of them is only
// compiled alone, with its tests. All other modules are also tested alone.
var heavy = []string{measure.Path("test"), "sigs.k8s.io/controller-runtime"}

func (m module) light() bool {
	for _, required := range m.Require {
		if slices.Contains(heavy, required.Path) {
			return false
		}
	}
	return true
}

// checkAlone vets and tests every module without the workspace, as its importers use it.
func checkAlone(ctx context.Context, repo *repository) error {
	return repo.eachModule(func(m module) error {
		packages, err := repo.output(ctx, m.Dir, "go", "list", "./...")
		if err != nil || packages == "" {
			return err
		}
		test := []string{"test", "-timeout", "5m"}
		if !m.light() {
			test = append(test, "-run", "^$")
		}
		for _, args := range [][]string{{"vet"}, test} {
			fmt.Fprintf(repo.log, "      %s: go %s\n", m.Dir, args[0])
			if _, err := repo.output(ctx, m.Dir, "go", append(args, "./...")...); err != nil {
				return err
			}
		}
		return nil
	})
}
