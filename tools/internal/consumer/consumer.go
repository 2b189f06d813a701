// Package consumer checks that others can import the modules of this repository. It packs all
// released modules at one version. A module outside of the repository requires them, without
// workspace and without replace lines. It is built and tested.
package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// timeout bounds all checks on a busy machine. They take a minute with an empty build cache.
const timeout = 15 * time.Minute

// Check runs all checks and prints a line for each. It needs no network when the module cache has
// the modules of others. At the end it removes the packed modules, also from the module cache.
func Check(ctx context.Context, root string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	scratch, err := os.MkdirTemp("", "consumer-")
	if err != nil {
		return err
	}
	w, err := prepare(ctx, root, scratch)
	if err == nil {
		err = w.runAll(ctx, out)
	}
	return errors.Join(err, w.forget(context.WithoutCancel(ctx)), os.RemoveAll(scratch))
}

// world is a folder outside of the repository, with a proxy.
type world struct {
	*modules.Go

	root, dir string
	version   string
	released  []modules.Module
}

// prepare packs all released modules at a version that is a hash of their content. So the module
// cache never has other content of that version.
func prepare(ctx context.Context, root, scratch string) (*world, error) {
	w := &world{root: root, dir: scratch}
	sources, proxy := filepath.Join(scratch, "sources"), modules.NewProxy(filepath.Join(scratch, "proxy"))
	w.Go = modules.NewGo(proxy)
	if err := copySources(ctx, root, sources); err != nil {
		return w, err
	}
	hash, err := hashOf(sources)
	if err != nil {
		return w, err
	}
	w.version = "v0.0.0-h" + hash
	all, err := modules.Load(sources)
	if err != nil {
		return w, err
	}
	for _, m := range all {
		if m.Released() {
			w.released = append(w.released, m)
			err = errors.Join(err, modules.Pin(sources, m, w.version), proxy.Add(sources, m, w.version, time.Now()))
		}
	}
	return w, err
}

func (w *world) forget(ctx context.Context) error {
	if w.version == "" {
		return nil
	}
	return w.Forget(ctx, w.released, w.version)
}

type check struct {
	name string
	run  func(ctx context.Context) (string, error)
}

func (w *world) runAll(ctx context.Context, out io.Writer) error {
	checks := []check{
		{"operator", w.checkOperator},
		{"agent", w.checkInstall},
	}
	for _, c := range costs() {
		checks = append(checks, check{c.name, func(ctx context.Context) (string, error) { return w.checkCost(ctx, c) }})
	}
	var errs []error
	for _, c := range checks {
		started := time.Now()
		result, err := c.run(ctx)
		took := time.Since(started).Round(100 * time.Millisecond)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.name, err))
			result = "FAILED"
		}
		fmt.Fprintf(out, "      %-26s %6s  %s\n", c.name, took, result)
	}
	return errors.Join(errs...)
}
