package consumer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// checkCommit imports each transport and source at the commit, as it is: the versions by which our
// modules require each other must exist.
func (w *world) checkCommit(ctx context.Context) (string, error) {
	shallow, err := modules.Git(ctx, w.Dir, "rev-parse", "--is-shallow-repository")
	if err != nil || shallow == "true" {
		return "not checked: the history is not here, git fetch --unshallow", err
	}
	imports := []string{modules.Path("listener"), modules.Path("adapters/httpmtls"), modules.Path("adapters/admission")}
	dir := filepath.Join(w.dir, "commit")
	code := "package main\n\nimport (\n\t_ \"" + strings.Join(imports, "\"\n\t_ \"") + "\"\n)\n\nfunc main() {}\n"
	err = errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "main.go"), []byte(code), 0o600),
		os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/commit\n\ngo 1.26.0\n"), 0o600),
		w.writeSums(dir))
	for _, args := range [][]string{
		{"get", imports[1] + "@" + w.commit},
		{"get", modules.Root + "@" + w.commit, imports[1] + "@" + w.commit, imports[2] + "@" + w.commit},
		{"build", "./..."},
	} {
		if err == nil {
			_, err = w.Run(ctx, dir, "go", args...)
		}
	}
	return "go get ...@" + w.commit[:12], err
}

// checkRelease makes the commit and the tags of a release.
func (w *world) checkRelease(ctx context.Context) (string, error) {
	return w.version, w.Pin(ctx, w.all, w.version)
}

// checkInstall installs the agent by its version. That fails for a module with replace lines.
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
