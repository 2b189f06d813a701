package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/measure"
)

// checkWorkspace fails unless go.work lists exactly the modules of the repository.
func checkWorkspace(ctx context.Context, repo *repository) error {
	out, err := repo.output(ctx, ".", "go", "work", "edit", "-json", "go.work")
	if err != nil {
		return err
	}
	var work struct {
		Go  string
		Use []struct{ DiskPath string }
	}
	if err := json.Unmarshal([]byte(out), &work); err != nil {
		return fmt.Errorf("go.work: %w", err)
	}
	var used, found []string
	for _, use := range work.Use {
		used = append(used, path.Clean(filepath.ToSlash(use.DiskPath)))
	}
	for _, m := range repo.modules {
		found = append(found, m.Dir)
	}
	errs := difference(used, found)
	for _, m := range repo.modules {
		if m.Go != work.Go {
			errs = append(errs, fmt.Errorf("%s/go.mod says go %s, go.work says go %s", m.Dir, m.Go, work.Go))
		}
	}
	return errors.Join(errs...)
}

func difference(used, found []string) []error {
	var errs []error
	for _, dir := range found {
		if !slices.Contains(used, dir) {
			errs = append(errs, fmt.Errorf("%s has a go.mod, and go.work does not use it", dir))
		}
	}
	for _, dir := range used {
		if !slices.Contains(found, dir) {
			errs = append(errs, fmt.Errorf("go.work uses %s, which has no go.mod", dir))
		}
	}
	return errs
}

// checkModules fails unless every module is named after its folder and replaces each required
// sibling, also an indirect one, by its folder. Otherwise the module does not build alone. A
// released module may require released siblings only.
func checkModules(_ context.Context, repo *repository) error {
	return repo.eachModule(func(m module) error {
		var errs []error
		if want := measure.Path(m.Dir); m.Module.Path != want {
			errs = append(errs, fmt.Errorf("the module is called %s, want %s", m.Module.Path, want))
		}
		for _, required := range m.Require {
			sibling, ok := measure.Folder(required.Path)
			if !ok {
				continue
			}
			if measure.Released(m.Dir) && !measure.Released(sibling) {
				errs = append(errs, fmt.Errorf("requires %s, which is never released", sibling))
			}
			if got := m.replacement(required.Path); path.Join(m.Dir, got) != sibling {
				errs = append(errs, fmt.Errorf("requires %s, replaced by %q: want its folder", sibling, got))
			}
		}
		return errors.Join(errs...)
	})
}

func (m module) replacement(old string) string {
	for _, replace := range m.Replace {
		if replace.Old.Path == old {
			return replace.New.Path
		}
	}
	return ""
}

func checkTidy(ctx context.Context, repo *repository) error {
	return repo.eachModule(func(m module) error {
		// -diff changes no file. The diff is long if a go.sum is missing.
		_, err := repo.output(ctx, m.Dir, "go", "mod", "tidy", "-diff")
		if err != nil {
			return errors.New(first(60, err.Error()))
		}
		return nil
	})
}
