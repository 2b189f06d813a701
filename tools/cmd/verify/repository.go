package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

// repository is a checkout and its state before the first check.
type repository struct {
	root        string
	modules     []module
	before      snapshot
	mustBeClean bool
	log         io.Writer
}

// module is a folder with a go.mod, as the go command reads it.
type module struct {
	// Dir is relative to the root of the repository, with slashes.
	Dir     string `json:"-"`
	Module  struct{ Path string }
	Go      string
	Require []struct{ Path, Version string }
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
}

// openRepository reads the modules in dirs, and takes a snapshot of the tree.
func openRepository(ctx context.Context, root string, dirs []string, log io.Writer) (*repository, error) {
	if len(dirs) == 0 {
		return nil, errors.New("no modules given: run it with make verify")
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	repo := &repository{root: root, log: log}
	for _, dir := range dirs {
		m, err := repo.readModule(ctx, dir)
		if err != nil {
			return nil, err
		}
		repo.modules = append(repo.modules, m)
	}
	repo.before, err = repo.snapshot(ctx)
	return repo, err
}

func (r *repository) readModule(ctx context.Context, dir string) (module, error) {
	m := module{Dir: path.Clean(filepath.ToSlash(dir))}
	out, err := r.output(ctx, m.Dir, "go", "mod", "edit", "-json")
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal([]byte(out), &m); err != nil {
		return m, fmt.Errorf("%s/go.mod: %w", dir, err)
	}
	return m, nil
}

// eachModule calls f for every module and joins the errors.
func (r *repository) eachModule(f func(module) error) error {
	var errs []error
	for _, m := range r.modules {
		if err := f(m); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.Dir, err))
		}
	}
	return errors.Join(errs...)
}

// output runs a command in a folder of the repository, without the workspace. It returns the
// standard output. The error has all output.
func (r *repository) output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = filepath.Join(r.root, filepath.FromSlash(dir))
	cmd.Env = append(os.Environ(), "GOWORK=off")
	return command.Output(cmd)
}

// files lists the files that git tracks or would add, relative to the root, with slashes.
func (r *repository) files(ctx context.Context, patterns ...string) ([]string, error) {
	return command.Files(ctx, r.root, patterns...)
}
