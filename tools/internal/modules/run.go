package modules

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/mod/module"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
	"github.com/runtime-watcher/runtime-watcher/tools/internal/measure"
)

// Go runs go commands outside of the workspace. They get the modules of this repository from a
// proxy, and all others from the module cache or from the usual proxy.
type Go struct{ proxy *Proxy }

// NewGo returns a runner of go commands.
func NewGo(proxy *Proxy) *Go { return &Go{proxy: proxy} }

// Run runs a command in a folder and returns its standard output. The error has all output.
func (g *Go) Run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd, err := g.command(ctx, name, args...)
	if err != nil {
		return "", err
	}
	cmd.Dir = dir
	return command.Output(cmd)
}

// Install installs a program, such as example.com/program@v1.0.0, into the folder bin.
func (g *Go) Install(ctx context.Context, bin, program string) error {
	cmd, err := g.command(ctx, "go", "install", program)
	if err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, "GOBIN="+bin)
	_, err = command.Output(cmd)
	return err
}

func (g *Go) command(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	usual, err := command.Output(exec.CommandContext(ctx, "go", "env", "GOPROXY"))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOPRIVATE=", "GONOPROXY=",
		"GONOSUMDB="+measure.Root,
		"GOPROXY="+g.proxy.URL()+","+strings.TrimSpace(usual))
	// The go command keeps an index of each module in its build cache, by version. The content of a
	// version can change before a release.
	cmd.Env = append(cmd.Env, "GODEBUG=goindex=0,"+os.Getenv("GODEBUG"))
	return cmd, nil
}

// Forget removes one version of the modules from the module cache.
func (g *Go) Forget(ctx context.Context, all []Module, version string) error {
	cache, err := g.Run(ctx, ".", "go", "env", "GOMODCACHE")
	if err != nil {
		return err
	}
	cache = strings.TrimSpace(cache)
	var errs []error
	for _, m := range all {
		errs = append(errs, forget(cache, m, version))
	}
	return errors.Join(errs...)
}

func forget(cache string, m Module, version string) error {
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	downloads, err := filepath.Glob(filepath.Join(cache, "cache", "download", escaped, "@v", version+".*"))
	for _, file := range downloads {
		err = errors.Join(err, os.Remove(file))
	}
	extracted := filepath.Join(cache, escaped+"@"+version)
	return errors.Join(err, unlock(extracted), os.RemoveAll(extracted))
}

// unlock makes a folder of the module cache removable.
func unlock(dir string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return root.Chmod(name, 0o700)
	})
}
