// Package consumer checks that other projects can import the modules of this repository, at a
// release and at a commit. The importers are modules outside of the repository, without workspace
// and without replace lines. The go command fetches from a scratch clone.
package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// timeout bounds all checks on a busy machine.
const timeout = 30 * time.Minute

// Check runs all checks and prints a line for each. It needs no network if the module cache
// contains all other modules. At the end it removes the release from the module cache.
func Check(ctx context.Context, root string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	scratch, err := os.MkdirTemp("", "consumer-")
	if err != nil {
		return err
	}

	w := &world{dir: scratch}
	if err = w.prepare(ctx, root); err == nil {
		err = w.runAll(ctx, out)
	}
	if w.Clone != nil {
		err = errors.Join(err, w.Forget(context.WithoutCancel(ctx), w.released, w.versions()))
	}

	return errors.Join(err, os.RemoveAll(scratch))
}

// world is a folder outside of the repository, with a clone.
type world struct {
	*modules.Clone

	dir string
	// version is the version of the release.
	version       string
	all, released []modules.Module
}

// versions are the same for both groups of modules.
func (w *world) versions() modules.Versions {
	return modules.Versions{Stable: w.version, Contrib: w.version}
}

// identity makes commits on a machine where git has none.
var identity = []string{"-c", "user.name=consumer", "-c", "user.email=consumer@example.com"}

// prepare clones the working tree, without files that git does not track. The version contains a
// hash of the content, so the module cache never contains different content for that version.
func (w *world) prepare(ctx context.Context, root string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}

	// Without a fresh index, git fails for files with a new time and the same content. The exit
	// code reports a changed file, which is no failure here.
	_, _ = modules.Git(ctx, root, "update-index", "-q", "--refresh")
	stash, err := modules.Git(ctx, root, append(identity, "stash", "create")...)
	if err != nil {
		return err
	}

	w.Clone, err = modules.NewClone(ctx, root, filepath.Join(w.dir, "clone"), cmp.Or(stash, "HEAD"))
	if err != nil {
		return err
	}

	for _, setting := range identity {
		if name, value, ok := strings.Cut(setting, "="); ok {
			_, gitErr := modules.Git(ctx, w.Dir, "config", name, value)
			err = errors.Join(err, gitErr)
		}
	}

	tree, treeErr := modules.Git(ctx, w.Dir, "rev-parse", "--short=12", "HEAD^{tree}")
	w.version = "v0.0.0-h" + tree
	all, loadErr := modules.Load(w.Dir)
	w.all, w.released = all, modules.OnlyReleased(all)

	return errors.Join(err, treeErr, loadErr)
}

func (w *world) runAll(ctx context.Context, out io.Writer) error {
	var errs []error
	for _, c := range []struct {
		name string
		run  func(ctx context.Context) (string, error)
	}{
		{"commit", w.checkCommit},
		{"release", w.checkRelease},
		{"operator", w.checkOperator},
		{"agent", w.checkInstall},
	} {
		started := time.Now()
		result, err := c.run(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.name, err))
			result = "FAILED"
		}

		fmt.Fprintf(out, "      %-10s %6s  %s\n", c.name, time.Since(started).Round(100*time.Millisecond), result)
	}
	return errors.Join(errs...)
}
