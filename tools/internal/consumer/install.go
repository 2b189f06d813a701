package consumer

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// checkCommit vets each released module as an importer of that module alone gets it from the
// commit: with its siblings at the versions that its go.mod names.
func (w *world) checkCommit(ctx context.Context) (string, error) {
	shallow, err := modules.Git(ctx, w.Dir, "rev-parse", "--is-shallow-repository")
	if err != nil || shallow == "true" {
		return "not checked: the history is not here, git fetch --unshallow", err
	}

	for _, m := range w.released {
		if len(m.Siblings) > 0 {
			err = errors.Join(err, w.vetAlone(ctx, m))
		}
	}

	_, restored := modules.Git(ctx, w.Dir, "checkout", "--quiet", ".")
	return "each module builds with the siblings that it requires", errors.Join(err, restored)
}

// vetAlone replaces each sibling of m by the required version, which belongs to a commit before
// this one. Without a replacement, the go command upgrades a sibling that lacks a package.
func (w *world) vetAlone(ctx context.Context, m modules.Module) error {
	edit := []string{"mod", "edit"}
	var err error

	for _, sibling := range m.Siblings {
		path := modules.Path(sibling)
		version := m.Required[sibling]
		edit = append(edit, "-replace="+path+"="+path+"@"+version)

		_, missing := modules.Git(ctx, w.Dir, "merge-base", "--is-ancestor", modules.Revision(sibling, version), "HEAD")
		err = errors.Join(err, missing)
	}

	for _, args := range [][]string{edit, {"vet", "./..."}} {
		if err == nil {
			_, err = w.Run(ctx, filepath.Join(w.Dir, filepath.FromSlash(m.Dir)), "go", args...)
		}
	}

	if err != nil {
		err = fmt.Errorf("%s requires %v. To repair: commit, make tidy VERSION=HEAD, commit: %w",
			m.Dir, m.Required, err)
	}

	return err
}

// checkRelease makes the commit and the tags of a release.
func (w *world) checkRelease(ctx context.Context) (string, error) {
	return w.version, w.Pin(ctx, w.all, w.versions())
}

// checkInstall installs the agent by its version. The installation fails for a module with replace
// lines.
func (w *world) checkInstall(ctx context.Context) (string, error) {
	bin := filepath.Join(w.dir, "bin")
	if err := w.Install(ctx, bin, modules.Path("cmd/agent")+"@"+w.version); err != nil {
		return "", err
	}

	said, err := w.Run(ctx, w.dir, filepath.Join(bin, "agent"), "-version")
	if err != nil {
		return "", err
	}
	if !strings.Contains(said, w.version) {
		return "", fmt.Errorf("agent -version prints %q, want %s", said, w.version)
	}

	return "go install .../cmd/agent@" + w.version, nil
}
